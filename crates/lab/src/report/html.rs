//! One page that holds everything: what was asked, what came out in pictures and words, the numbers, and on what machine.
//! Self-contained: it loads nothing.

use std::fmt::Write;

use super::figures::figures;
use super::markdown::{cell_text, columns};
use super::measure::Measure;
use super::summary::Summary;
use super::words;
use crate::Results;
use strongroom::plot::{draw, escape, number};

const STYLE: &str = "
:root{--ink:#1f2733;--faint:#5b6675;--line:#e3e7ed;--accent:#0072b2;--alarm:#c1121f}
*{box-sizing:border-box}
body{margin:0;background:#f6f7f9;color:var(--ink);font:16px/1.6 'Segoe UI','DejaVu Sans',Verdana,sans-serif}
header{background:#1f2733;color:#fff;padding:44px 0 36px}
header h1{margin:0 0 6px;font-size:32px;letter-spacing:-.4px}header p{margin:0;color:#c9d2df;max-width:760px}
.wrap{max-width:1060px;margin:0 auto;padding:0 28px}
nav{position:sticky;top:0;background:#fff;border-bottom:1px solid var(--line);z-index:1}
nav a{display:inline-block;padding:12px 18px 12px 0;color:var(--accent);text-decoration:none;font-size:14px}
section{background:#fff;border:1px solid var(--line);border-radius:10px;padding:30px 36px;margin:28px 0}
h2{margin:0 0 4px;font-size:23px;letter-spacing:-.2px}h3{font-size:16px;margin:30px 0 8px}
.question{font-size:18px;color:var(--accent);margin:2px 0 14px}.faint{color:var(--faint);font-size:14px}
.cards{display:flex;flex-wrap:wrap;gap:14px;margin:18px 0}
.card{flex:1 1 200px;border:1px solid var(--line);border-radius:8px;padding:14px 18px}
.card b{display:block;font-size:26px;line-height:1.25;letter-spacing:-.5px}.card span{color:var(--faint);font-size:13px}
figure{margin:26px 0;overflow-x:auto}figure svg{max-width:100%;height:auto;display:block}
.alarm{border-left:4px solid var(--alarm);background:#fdf1f1;padding:10px 16px;margin:12px 0;font-size:15px}
.note{border-left:4px solid #e69f00;background:#fff8ea;padding:10px 16px;margin:12px 0;font-size:15px}
details{margin:14px 0}summary{cursor:pointer;color:var(--accent);font-size:15px}
li{margin:5px 0}.table{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;white-space:nowrap;margin:10px 0}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:right}
th{color:var(--faint);font-weight:600;white-space:normal;vertical-align:bottom}
td:first-child,td:nth-child(2),th:first-child,th:nth-child(2){text-align:left}
tr.first td{border-top:2px solid #cfd6df}td.error{color:var(--alarm);font-weight:600}
code{background:#eef1f5;border-radius:4px;padding:2px 6px;font-size:13px;overflow-wrap:anywhere}
footer{color:var(--faint);font-size:13px;padding:6px 0 50px}
";

/// The page.
pub(crate) fn page(results: &Results, summaries: &[Summary]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Strongroom, measured</title><style>{STYLE}</style></head><body>\n"
    );
    let date = results.machines.first().map(|machine| machine.date.as_str()).unwrap_or_default();
    let _ = write!(
        out,
        "<header><div class=\"wrap\"><h1>Strongroom, measured</h1><p>What it costs to let initiators seal every block, so that \
         the machine that stores them need not be trusted. {} measurements, {}.</p></div></header>",
        results.cells.len(),
        escape(date)
    );
    out += "<nav><div class=\"wrap\">";
    for summary in summaries {
        let bench = escape(&summary.experiment.bench);
        let _ = write!(out, "<a href=\"#{bench}\">{bench}</a>");
    }
    out += "<a href=\"#machine\">machine</a></div></nav>\n<main class=\"wrap\">";
    summaries.iter().for_each(|summary| experiment(&mut out, summary));
    machine(&mut out, results);
    out += "</main>\n<footer class=\"wrap\">Whiskers and brackets show the lowest and the highest run. Ratios are taken run by \
            run. Nothing here may be compared with numbers of another run.</footer></body></html>\n";
    out
}

fn experiment(out: &mut String, summary: &Summary) {
    let experiment = &summary.experiment;
    let _ = write!(out, "<section id=\"{}\"><h2>{}</h2>", escape(&experiment.bench), escape(&experiment.title));
    if !experiment.question.is_empty() {
        let _ = write!(out, "<p class=\"question\">{}</p>", escape(&experiment.question));
        let _ = write!(out, "<p>{}</p>", escape(&experiment.method));
    }
    cards(out, summary);
    let reliability = words::reliability(summary);
    let class = if reliability.contains("believe ratios") { "note" } else { "faint" };
    let _ = write!(out, "<p class=\"{class}\">{}</p>", escape(&reliability));
    for failure in words::failures(summary) {
        let _ = write!(out, "<p class=\"alarm\">{}</p>", escape(&failure));
    }
    for figure in figures(summary) {
        let _ = write!(out, "<figure>{}</figure>", draw(&figure));
    }
    let findings = words::findings(summary);
    if !findings.is_empty() {
        let open = if findings.len() <= 8 { " open" } else { "" };
        let _ = write!(out, "<details{open}><summary>In words: {} comparisons</summary><ul>", findings.len());
        for finding in findings {
            let _ = write!(out, "<li>{}</li>", escape(&finding));
        }
        out.push_str("</ul></details>");
    }
    table(out, summary);
    out.push_str("</section>\n");
}

/// The few numbers that a reader remembers: each contender against the first, over the whole grid.
fn cards(out: &mut String, summary: &Summary) {
    let Some(base_name) = summary.contenders.first() else { return };
    if summary.contenders.len() < 2 || summary.contenders.len() > 4 {
        return;
    }
    out.push_str("<div class=\"cards\">");
    for name in &summary.contenders[1..] {
        let shown = [
            (summary.experiment.main, "throughput"),
            (Measure::TargetPerKio, "target CPU per I/O"),
            (Measure::InitiatorPerKio, "initiator CPU per I/O"),
        ];
        let few = if summary.contenders.len() == 2 { 3 } else { 2 };
        for (measure, words) in shown.into_iter().take(few) {
            let words = if measure == Measure::Seconds { "time" } else { words };
            if let Some((low, high)) = over_the_grid(summary, base_name, name, measure) {
                let (low, high) = (number_short(low), number_short(high));
                let range = if low == high { format!("{low}×") } else { format!("{low}–{high}×") };
                let _ = write!(
                    out,
                    "<div class=\"card\"><b>{range}</b><span>{} of {} against {}, over the whole grid</span></div>",
                    escape(words),
                    escape(name),
                    escape(base_name)
                );
            }
        }
    }
    out.push_str("</div>");
}

fn number_short(ratio: f64) -> String {
    if ratio >= 10.0 { number(ratio) } else { format!("{ratio:.2}") }
}

/// The lowest and the highest median ratio of all places.
fn over_the_grid(summary: &Summary, base: &str, name: &str, measure: Measure) -> Option<(f64, f64)> {
    let ratios: Vec<f64> = summary
        .points()
        .iter()
        .filter_map(|place| Some(summary.row(place, name)?.ratio(summary.row(place, base)?, measure)?.median))
        .collect();
    let low = ratios.iter().copied().reduce(f64::min)?;
    Some((low, ratios.iter().copied().fold(low, f64::max)))
}

fn table(out: &mut String, summary: &Summary) {
    let columns = columns(summary);
    out.push_str(
        "<details><summary>All numbers</summary><div class=\"table\"><table><tr><th>what</th><th>contender</th>",
    );
    for column in &columns {
        let _ = write!(out, "<th>{}</th>", escape(column.column()));
    }
    out.push_str("</tr>");
    let mut last = None;
    for row in &summary.rows {
        let first = last.as_ref() != Some(&row.point);
        last = Some(row.point.clone());
        let class = if first { " class=\"first\"" } else { "" };
        let what = if first { row.point.in_words() } else { String::new() };
        let _ = write!(out, "<tr{class}><td>{}</td><td>{}</td>", escape(&what), escape(&row.contender));
        for column in &columns {
            let text = cell_text(row, *column, summary.experiment.main);
            let class = if text == "error" { " class=\"error\"" } else { "" };
            let _ = write!(out, "<td{class}>{text}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div></details>");
}

fn machine(out: &mut String, results: &Results) {
    out.push_str("<section id=\"machine\"><h2>On what, and how</h2>");
    let mut last = String::new();
    for machine in &results.machines {
        let words = words::machine_in_words(machine);
        if words != last {
            let _ = write!(out, "<p>{}</p>", escape(&words));
        }
        let _ = write!(out, "<p><code>{}</code></p>", escape(&machine.command));
        last = words;
    }
    out.push_str("</section>\n");
}
