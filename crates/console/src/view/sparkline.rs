//! A small line of what was lately, as SVG. No styles in it: the policy of the pages allows none but the style sheet's.

use std::fmt::Write as _;

use maud::{Markup, html};

const WIDTH: f64 = 180.0;
const HEIGHT: f64 = 40.0;
/// Points of a full line.
const POINTS: usize = 90;

/// A line from the left (before) to the right (now), with its top at the largest value.
pub(crate) fn sparkline(label: &str, values: &[f64]) -> Markup {
    let top = values.iter().copied().fold(0.0, f64::max).max(1.0);
    let step = WIDTH / (POINTS - 1) as f64;
    let left = WIDTH - step * values.len().saturating_sub(1) as f64;
    let mut line = String::new();
    for (at, value) in values.iter().enumerate() {
        let y = HEIGHT - 1.0 - (HEIGHT - 2.0) * value / top;
        let _ = write!(line, "{:.1},{y:.1} ", left + step * at as f64);
    }
    let area = format!("{left:.1},{HEIGHT} {line}{WIDTH},{HEIGHT}");
    html! {
        svg class="spark" role="img" aria-label=(label) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
            @if values.len() > 1 {
                polygon points=(area) {}
                polyline points=(line) {}
            }
        }
    }
}
