//! Owns the picture: what is accepted in time against what is offered, with the gate and without it.

use std::fmt::Write;

/// What was reached at one load: how many times what fits was offered, and the share of what fits that was accepted in time.
pub type Point = (f64, f64);

fn x(multiple: f64) -> f64 {
    60.0 + multiple.log10() / 50_f64.log10() * 520.0
}

fn y(share: f64) -> f64 {
    260.0 - share.min(1.2) * 180.0
}

/// An SVG with a logarithmic axis of what is offered.
pub fn svg(fits: f64, with: &[Point], without: &[Point]) -> String {
    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 310" font-family="sans-serif" font-size="13"><rect width="620" height="310" fill="white"/>"#,
    );
    let _ = write!(svg, r#"<path d="M60 40V260H590" fill="none" stroke="black"/>"#);
    for (multiple, _) in with {
        let _ = write!(svg, r#"<text x="{:.0}" y="278" text-anchor="middle">{multiple}x</text>"#, x(*multiple));
    }
    let _ = write!(
        svg,
        r#"<text x="590" y="298" text-anchor="end">offered, in multiples of the {fits:.0} events/s that fit</text>"#
    );
    for share in [0.0, 0.5, 1.0] {
        let percent = share * 100.0;
        let _ = write!(svg, r#"<text x="54" y="{:.0}" text-anchor="end">{percent:.0} %</text>"#, y(share) + 4.0);
    }
    for (points, colour, name, at) in [
        (with, "#0a7d36", "accepted in time, with the gate", 24),
        (without, "#c0392b", "accepted in time, without it", 42),
    ] {
        let line: Vec<String> = points.iter().map(|(m, share)| format!("{:.0},{:.0}", x(*m), y(*share))).collect();
        let line = line.join(" ");
        let _ = write!(svg, r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>"#);
        let _ = write!(svg, r#"<text x="580" y="{at}" text-anchor="end" fill="{colour}">{name}</text>"#);
    }
    svg.push_str("</svg>\n");
    svg
}
