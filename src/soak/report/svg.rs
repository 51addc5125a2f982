//! Owns one chart as SVG text: axes, lines, steps, bars, spans, a legend. Colours are names of CSS classes, so that the page
//! decides how they look in light and dark.
//! Must never know: what is drawn.

use std::fmt::Write;

/// Size of a chart and the room around its drawing, in SVG units.
const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 230.0;
const ROW: f64 = 17.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// A chart in the making.
pub(super) struct Chart {
    height: f64,
    x_max: f64,
    y_max: f64,
    /// Behind everything else.
    behind: String,
    marks: String,
    legend: Vec<(String, String)>,
}

/// A number without needless digits.
pub(super) fn short(n: f64) -> String {
    match n.abs() {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n if n >= 10.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// Text that may stand in XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The next number of the form 1, 2 or 5 times a power of ten.
fn round_up(n: f64) -> f64 {
    let power = 10_f64.powf(n.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|round| *round >= n).unwrap_or(10.0 * power)
}

impl Chart {
    /// From 0 to these values; the vertical one is rounded up.
    pub(super) fn new(x_max: f64, y_max: f64) -> Self {
        let (behind, marks, legend) = (String::new(), String::new(), Vec::new());
        let y_max = round_up(y_max * 1.02);
        Self { height: HEIGHT, x_max: x_max.max(1e-9), y_max, behind, marks, legend }
    }

    /// As high as so many rows need, each 1 high.
    pub(super) fn rows(x_max: f64, rows: f64) -> Self {
        let height = (rows * ROW).max(ROW) + TOP + BOTTOM;
        Self { height, y_max: rows.max(1.0), ..Self::new(x_max, 1.0) }
    }

    fn x(&self, x: f64) -> f64 {
        LEFT + (x / self.x_max).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        self.height - BOTTOM - (y / self.y_max).clamp(0.0, 1.0) * (self.height - TOP - BOTTOM)
    }

    /// Names a class in the legend.
    pub(super) fn name(&mut self, class: &str, text: &str) {
        self.legend.push((class.to_owned(), text.to_owned()));
    }

    /// A line through points.
    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let Some((first, rest)) = points.split_first() else { return };
        let mut path = format!("M{:.1} {:.1}", self.x(first.0), self.y(first.1));
        for (x, y) in rest {
            let _ = write!(path, "L{:.1} {:.1}", self.x(*x), self.y(*y));
        }
        let _ = write!(self.marks, "<path class=\"line {class}\" d=\"{path}\"/>");
    }

    /// A level across the whole chart.
    pub(super) fn level(&mut self, class: &str, y: f64) {
        let (from, to, at) = (self.x(0.0), self.x(self.x_max), self.y(y));
        let _ = write!(self.marks, "<path class=\"line {class}\" d=\"M{from:.1} {at:.1}H{to:.1}\"/>");
    }

    /// A rectangle from a corner to the opposite one; `title` is shown where the pointer rests on it.
    pub(super) fn bar(&mut self, class: &str, (x0, x1): (f64, f64), (y0, y1): (f64, f64), title: &str) {
        let (left, right, top, bottom) = (self.x(x0), self.x(x1), self.y(y1), self.y(y0));
        let _ = write!(
            self.marks,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
            (right - left).max(0.5),
            (bottom - top).max(0.0),
            escaped(title)
        );
    }

    /// A span of the horizontal axis, behind everything.
    pub(super) fn span(&mut self, class: &str, (x0, x1): (f64, f64), title: &str) {
        let (left, right) = (self.x(x0), self.x(x1));
        let _ = write!(
            self.behind,
            "<rect class=\"span {class}\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
            (right - left).max(2.0),
            self.height - TOP - BOTTOM,
            escaped(title)
        );
    }

    /// Text at a place.
    pub(super) fn text(&mut self, (x, y): (f64, f64), text: &str) {
        let (x, y) = (self.x(x), self.y(y));
        let _ = write!(self.marks, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
    }

    /// The whole, with axes. `ticks` are those of the horizontal axis; of the vertical one there are five, unless it counts
    /// nothing.
    pub(super) fn finish(self, title: &str, ticks: &[(f64, String)], counts: bool) -> String {
        let mut axes = String::new();
        for i in 0..=4 {
            let value = self.y_max * f64::from(i) / 4.0;
            let (from, to, at) = (self.x(0.0), self.x(self.x_max), self.y(value));
            if counts || i == 0 {
                let _ = write!(axes, "<path class=\"grid\" d=\"M{from:.1} {at:.1}H{to:.1}\"/>");
            }
            if counts {
                let _ = write!(
                    axes,
                    "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    LEFT - 6.0,
                    at + 4.0,
                    short(value)
                );
            }
        }
        for (x, text) in ticks {
            let at = self.x(*x);
            let _ = write!(
                axes,
                "<text class=\"mid\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                self.height - BOTTOM + 16.0,
                escaped(text)
            );
        }
        let legend: String = self
            .legend
            .iter()
            .map(|(class, text)| format!("<span><i class=\"{class}\"></i>{}</span>", escaped(text)))
            .collect();
        format!(
            "<figure><figcaption>{title}</figcaption><div class=\"legend\">{legend}</div><svg viewBox=\"0 0 {WIDTH} {height}\" \
             role=\"img\" aria-label=\"{title}\">{}{axes}{}</svg></figure>\n",
            self.behind,
            self.marks,
            height = self.height,
            title = escaped(title)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_their_values_say() {
        let mut chart = Chart::new(10.0, 100.0);
        chart.line("a", &[(0.0, 0.0), (10.0, 200.0), (20.0, 100.0)]);
        let svg = chart.finish("t", &[], true);
        assert!(svg.contains("M56.0 196.0L866.0 12.0L866.0 104.0"), "{svg}");
        assert!(svg.contains(">200</text>"), "100 and some air, rounded up: {svg}");
    }

    #[test]
    fn hostile_text_stays_text() {
        let mut chart = Chart::new(1.0, 1.0);
        chart.bar("a", (0.0, 1.0), (0.0, 1.0), "<script>\"x\"&");
        chart.name("a", "<b>");
        let svg = chart.finish("<i>", &[], true);
        assert!(!svg.contains("<script>") && !svg.contains("<b>") && !svg.contains("<i>"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.25, 12.4, 12_000.0, 2_500_000.0].map(short), ["0", "1.2", "12", "12k", "2.5M"]);
    }
}
