//! Draws figures as SVG: plain shapes and text, one family of fonts, colours that colour-blind people can tell apart.

use std::fmt::Write;

use super::chart::{Chart, Figure, Look, Series, Value};

const WIDTH: f64 = 980.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 36.0;
/// Room for a chart's title and axis title, above its plot.
const HEAD: f64 = 44.0;
const PLOT_HEIGHT: f64 = 190.0;
/// Room for the vertical axis's numbers.
const LEFT: f64 = 52.0;
const LINE_HEIGHT: f64 = 14.0;
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// After Okabe and Ito; the first is for what the others are compared with.
const COLOURS: [&str; 10] =
    ["#8a94a3", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#b2a300", "#3d4450"];
const INK: &str = "#1f2733";
const FAINT: &str = "#5b6675";
const GRID: &str = "#e3e7ed";
const ALARM: &str = "#c1121f";

/// The whole figure.
pub fn draw(figure: &Figure) -> String {
    let columns = if figure.charts.len() == 1 { 1 } else { 2 };
    let group_lines = figure.charts.iter().flat_map(|chart| &chart.groups).map(|label| label.lines().count()).max();
    let foot = 22.0 + LINE_HEIGHT * group_lines.unwrap_or(1) as f64;
    let cell_height = HEAD + PLOT_HEIGHT + foot;
    let names: Vec<&str> =
        figure.charts.first().into_iter().flat_map(|chart| &chart.series).map(|s| s.name.as_str()).collect();
    let (legend, legend_height) = legend(&names, 66.0);
    let top = 66.0 + legend_height;
    let rows = figure.charts.len().div_ceil(columns);
    let height = top + rows as f64 * cell_height + 8.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" font-family=\"{FONT}\" role=\"img\"><title>{}</title>\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
        escape(&figure.title)
    );
    text(&mut out, MARGIN, 30.0, 17.0, INK, "start", true, &capital(&figure.title));
    text(&mut out, MARGIN, 50.0, 11.5, FAINT, "start", false, &figure.note);
    out.push_str(&legend);
    let width = (WIDTH - 2.0 * MARGIN - GAP * (columns - 1) as f64) / columns as f64;
    for (index, chart) in figure.charts.iter().enumerate() {
        let x = MARGIN + (index % columns) as f64 * (width + GAP);
        let y = top + (index / columns) as f64 * cell_height;
        draw_chart(&mut out, chart, x, y, width);
    }
    out.push_str("</svg>\n");
    out
}

/// Coloured squares with names, in as many lines as they need; and how high that is.
fn legend(names: &[&str], top: f64) -> (String, f64) {
    let mut out = String::new();
    let (mut x, mut y) = (MARGIN, top);
    for (index, name) in names.iter().enumerate() {
        let width = 30.0 + 7.4 * name.chars().count() as f64;
        if x + width > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + 20.0);
        }
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>");
        text(&mut out, x + 18.0, y + 10.5, 12.0, INK, "start", false, name);
        x += width;
    }
    (out, y - top + 28.0)
}

fn draw_chart(out: &mut String, chart: &Chart, x: f64, y: f64, width: f64) {
    text(out, x, y + 14.0, 13.0, INK, "start", true, &chart.title);
    text(out, x, y + 30.0, 10.5, FAINT, "start", false, &chart.axis);
    let plot = Plot { left: x + LEFT, right: x + width, top: y + HEAD, bottom: y + HEAD + PLOT_HEIGHT };
    if !chart.has_values() {
        text(
            out,
            (plot.left + plot.right) / 2.0,
            (plot.top + plot.bottom) / 2.0,
            12.0,
            FAINT,
            "middle",
            false,
            "no numbers",
        );
    }
    let scale = Scale::for_chart(chart);
    for tick in scale.ticks() {
        let at = plot.y(scale.share(tick));
        let (left, right) = (plot.left, plot.right);
        let _ = write!(out, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"{GRID}\"/>");
        text(out, plot.left - 7.0, at + 3.5, 10.5, FAINT, "end", false, &number(tick));
    }
    let group_width = (plot.right - plot.left) / chart.groups.len().max(1) as f64;
    for (index, label) in chart.groups.iter().enumerate() {
        let middle = plot.left + (index as f64 + 0.5) * group_width;
        for (line, words) in label.lines().enumerate() {
            let at = plot.bottom + 16.0 + LINE_HEIGHT * line as f64;
            text(out, middle, at, if group_width < 46.0 { 8.5 } else { 10.5 }, INK, "middle", false, words);
        }
    }
    match chart.look {
        Look::Bars => bars(out, chart, &plot, &scale, group_width),
        Look::Lines => lines(out, chart, &plot, &scale, group_width),
    }
    let (left, right, bottom) = (plot.left, plot.right, plot.bottom);
    let _ = write!(out, "<path d=\"M{left:.1} {bottom:.1}H{right:.1}\" stroke=\"{INK}\"/>");
}

struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot {
    fn y(&self, share: f64) -> f64 {
        self.bottom - share.clamp(0.0, 1.0) * (self.bottom - self.top)
    }
}

fn bars(out: &mut String, chart: &Chart, plot: &Plot, scale: &Scale, group_width: f64) {
    let count = chart.series.len().max(1) as f64;
    let bar = (group_width * 0.78 / count).min(46.0);
    for (index, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        for (group, value) in series.values.iter().enumerate() {
            let middle = plot.left + (group as f64 + 0.5) * group_width;
            let x = middle + (index as f64 - count / 2.0) * bar;
            let Some(value) = value else { continue };
            let Value::Measured { middle: value, low, high } = *value else {
                failed(out, x + bar / 2.0, plot.bottom - 6.0);
                continue;
            };
            let y = plot.y(scale.share(value));
            let (shown, height) = ((bar - 1.5).max(1.0), (plot.bottom - y).max(0.5));
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{shown:.1}\" height=\"{height:.1}\" fill=\"{colour}\">"
            );
            let _ = write!(out, "<title>{}: {}</title></rect>", escape(&series.name), number(value));
            whisker(out, x + shown / 2.0, plot.y(scale.share(low)), plot.y(scale.share(high)));
            if bar >= 24.0 {
                text(
                    out,
                    x + shown / 2.0,
                    plot.y(scale.share(high)) - 4.0,
                    9.0,
                    FAINT,
                    "middle",
                    false,
                    &number(value),
                );
            }
        }
    }
}

fn lines(out: &mut String, chart: &Chart, plot: &Plot, scale: &Scale, group_width: f64) {
    for (index, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let x = |group: usize| plot.left + (group as f64 + 0.5) * group_width;
        let mut path = String::new();
        for (group, value) in series.values.iter().enumerate() {
            match value {
                Some(Value::Measured { middle, .. }) => {
                    let begin = if path.is_empty() || interrupted(series, group) { 'M' } else { 'L' };
                    let _ = write!(path, "{begin}{:.1} {:.1}", x(group), plot.y(scale.share(*middle)));
                }
                Some(Value::Failed) => failed(out, x(group), plot.bottom - 6.0),
                None => {}
            }
        }
        let _ = write!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        for (group, value) in series.values.iter().enumerate() {
            if let Some(Value::Measured { middle, low, high }) = *value {
                let y = plot.y(scale.share(middle));
                whisker(out, x(group), plot.y(scale.share(low)), plot.y(scale.share(high)));
                let _ = write!(out, "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.6\" fill=\"{colour}\">", x(group));
                let _ = write!(out, "<title>{}: {}</title></circle>", escape(&series.name), number(middle));
            }
        }
    }
}

/// Whether there is nothing to join this point to.
fn interrupted(series: &Series, group: usize) -> bool {
    group == 0 || !matches!(series.values[group - 1], Some(Value::Measured { .. }))
}

fn whisker(out: &mut String, x: f64, low: f64, high: f64) {
    if low - high > 1.0 {
        let (left, right) = (x - 2.5, x + 2.5);
        let _ = write!(
            out,
            "<path d=\"M{x:.1} {low:.1}V{high:.1}M{left:.1} {high:.1}H{right:.1}M{left:.1} {low:.1}H{right:.1}\" \
             stroke=\"{INK}\" stroke-opacity=\"0.65\" fill=\"none\"/>"
        );
    }
}

fn failed(out: &mut String, x: f64, y: f64) {
    text(out, x, y, 13.0, ALARM, "middle", true, "×");
}

/// From numbers to the height of the plot.
struct Scale {
    logarithmic: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn for_chart(chart: &Chart) -> Scale {
        let (low, high) = chart.range();
        let high = if high > 0.0 { high } else { 1.0 };
        if chart.look == Look::Bars {
            // Room for a number above the highest bar.
            return Scale { logarithmic: false, low: 0.0, high: high * 1.1 };
        }
        let low = low.min(high).max(high / 1e6);
        Scale { logarithmic: true, low: low / 1.4, high: high * 1.4 }
    }

    fn share(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            value / self.high
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let rough = self.high / 4.5;
            let magnitude = 10f64.powf(rough.log10().floor());
            let step =
                [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= rough);
            let step = step.unwrap_or(magnitude * 10.0);
            return (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= self.high).collect();
        }
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = if decades < 1.2 {
            &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]
        } else if decades < 2.5 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let ticks = (first..=last).flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        ticks.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// Three digits, without what nobody needs.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

#[allow(clippy::too_many_arguments)] // One line of text has that many properties.
fn text(out: &mut String, x: f64, y: f64, size: f64, colour: &str, anchor: &str, bold: bool, words: &str) {
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{weight}>{}</text>",
        escape(words)
    );
}

/// For XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
