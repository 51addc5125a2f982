//! Owns a picture of numbers as SVG: panels with lines over a common axis.
//! Must never know: what the numbers mean, or where the picture goes.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 62.0;
const PANEL: f64 = 220.0;
const BELOW: f64 = 56.0;

/// Colours that differ in print and for the colour-blind too; a panel has at most as many lines.
const COLOURS: [&str; 4] = ["#c0392b", "#1f5fa8", "#0a7d36", "#8a5a00"];

/// A line: its name, and a value for each place of the axis; `None` where there is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Shown beside its colour.
    pub name: String,
    /// Not negative.
    pub values: Vec<Option<f64>>,
}

/// Lines of one unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is shown, with the unit.
    pub title: String,
    /// At most four.
    pub lines: Vec<Line>,
}

/// Draws the panels one below the other. `places` are the labels of the axis; an empty one has no mark.
#[must_use]
pub fn svg(axis: &str, places: &[String], panels: &[Panel]) -> String {
    let height = (TOP + PANEL + BELOW) * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (i, panel) in panels.iter().enumerate() {
        draw(&mut svg, (TOP + PANEL + BELOW) * i as f64 + TOP, panel, (axis, places));
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, top: f64, panel: &Panel, (axis, places): (&str, &[String])) {
    let most = panel.lines.iter().flat_map(|line| line.values.iter().flatten()).fold(0.0_f64, |a, b| a.max(*b));
    let most = round_up(most);
    let (bottom, right) = (top + PANEL, WIDTH - RIGHT);
    let x = |i: usize| LEFT + (right - LEFT) * (i as f64 + 0.5) / places.len().max(1) as f64;
    let y = |value: f64| bottom - PANEL * value / most;
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>", top - 40.0, text(&panel.title));
    for i in 0..=4 {
        let value = most * f64::from(i) / 4.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {0:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(value),
            LEFT - 6.0,
            y(value) + 4.0,
            short(value)
        );
    }
    for (i, place) in places.iter().enumerate().filter(|(_, place)| !place.is_empty()) {
        let (x, y) = (x(i), bottom + 18.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", text(place));
    }
    let _ = writeln!(svg, "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>", bottom + 36.0, text(axis));
    for (i, (line, colour)) in panel.lines.iter().zip(COLOURS).enumerate() {
        let name_x = LEFT + 190.0 * i as f64;
        let points = line.values.iter().enumerate().filter_map(|(i, value)| Some((x(i), y((*value)?))));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<text x=\"{name_x}\" y=\"{}\" fill=\"{colour}\">{}</text>\n<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"2\"/>",
            top - 20.0,
            text(&line.name),
            points.join(" ")
        );
    }
}

/// The next of 1, 2, 3, 4, 5, 6, 8, 10 times a power of ten, so that quarters of it are short.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let unit = 10.0_f64.powf(most.log10().floor());
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].into_iter().map(|n| n * unit).find(|n| *n >= most).unwrap_or(most)
}

fn short(value: f64) -> String {
    let digits =
        if value == 0.0 || value >= 100.0 { 0 } else { (2.0 - value.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[Option<f64>]) -> Panel {
        Panel { title: "a < b".into(), lines: vec![Line { name: "one & two".into(), values: values.to_vec() }] }
    }

    #[test]
    fn a_line_has_a_point_for_each_value_and_stays_inside() {
        let places: Vec<String> = ["1", "2", "3"].map(String::from).to_vec();
        let svg = svg("n", &places, &[panel(&[Some(0.0), None, Some(7.0)])]);
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let points: Vec<(f64, f64)> = points
            .split(' ')
            .map(|point| point.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).unwrap())
            .collect();
        assert_eq!(points.len(), 2);
        assert!((points[0].1 - (TOP + PANEL)).abs() < 0.1 && points[1].1 > TOP, "{points:?}");
        assert!(points.iter().all(|(x, _)| (LEFT..WIDTH).contains(x)), "{points:?}");
    }

    #[test]
    fn what_is_written_cannot_break_the_picture() {
        let svg = svg("n", &[], &[panel(&[])]);
        assert!(svg.contains("a &lt; b") && svg.contains("one &amp; two"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn the_scale_ends_at_a_round_number() {
        let ends = [0.0, 0.03, 1.0, 9.61, 45.0, 1_700.0].map(round_up);
        assert_eq!(ends.map(short), ["1", "0.03", "1", "10", "50", "2000"]);
    }
}
