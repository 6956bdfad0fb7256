//! The WAN paper's Figures 9 to 16 from cells of `wan`: throughput, improvement, processor time, and the model beside all of it.
//!
//! A cell's place is a delay and a size; what the settings differ in is the contender. Absent: the measurement (`crate::wan`).

use super::summary::{Row, Spread, Summary};
use crate::Cell;
use strongroom::plot::number;
use strongroom::plot::{Chart, Figure, Look, Series, Value};
use strongroom::units::long_size;

/// What the others are held against: what IPsec gives an initiator that does nothing else.
pub(super) const EAGER: &str = "S2-1 one at a time";
/// The same without overlap, sealed.
pub(super) const SEALED: &str = "S2-5 one at a time";
/// Figures 9, 10, 12, 13, 15 are of these delays, in milliseconds.
const SHOWN_MS: [f64; 2] = [8.0, 64.0];
/// How far measurement and model may lie apart.
pub(super) const TOLERANCE: f64 = 0.15;
/// Below this round trip, in milliseconds, the initiator's own work is as long as the waiting, and the model knows nothing of it.
const ROUND_TRIP_MS_MIN: f64 = 1.0;
/// Cells that are named one by one.
const NAMED_MAX: usize = 12;
/// "Small blocks": up to this.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// One of a cell's numbers.
pub(super) type Number<'a> = &'a dyn Fn(&Cell) -> Option<f64>;

/// The figures, in the paper's order.
pub(crate) fn figures(summary: &Summary) -> Vec<Figure> {
    let bench = &summary.experiment.bench;
    let figure = |name: &str, title: &str, charts: Vec<Chart>| Figure {
        name: format!("{bench}-{name}"),
        title: format!("{bench}: {title}"),
        note: format!("{}; sequential writes.", link_in_words(summary)),
        charts,
    };
    let delays = delays(summary);
    let shown: Vec<f64> = match delays.iter().copied().filter(|delay| SHOWN_MS.contains(delay)).collect::<Vec<_>>() {
        shown if shown.is_empty() => delays.iter().copied().rev().take(2).rev().collect(),
        shown => shown,
    };
    let by_size = |axis: &str, of: Number<'_>| -> Vec<Chart> {
        shown.iter().map(|&delay| chart_by_size(summary, delay, axis, of)).collect()
    };
    let mut figures = vec![
        figure(
            "throughput",
            "throughput by block size (Figures 9 and 10)",
            by_size("MiB/s", &|cell| cell.throughput.mib_s),
        ),
        figure("improvement", "times as fast as S2-1 one at a time (Figure 11)", vec![improvement(summary)]),
        figure(
            "processor",
            "the initiator's processor time (Figures 12 and 13)",
            by_size("CPU seconds in a second", &|cell| cell.cpu.initiator_cpu),
        ),
        figure(
            "processor-by-delay",
            "the initiator's processor time by delay (Figure 14)",
            vec![by_delay(summary, "CPU seconds in a second, mean over block sizes", &|cell| cell.cpu.initiator_cpu)],
        ),
        figure(
            "model",
            "calculated and measured (Figure 15)",
            shown.iter().map(|&delay| model(summary, delay)).collect(),
        ),
        figure("ratio", "against OP-2, at the longest delay (Figure 16)", vec![against_op_2(summary)]),
        figure(
            "encrypted",
            "bytes encrypted by the initiator for each byte delivered",
            vec![by_delay(summary, "bytes per byte, mean over block sizes", &|cell| {
                cell.crypto.initiator_encrypted_per_byte
            })],
        ),
    ];
    figures.retain(|figure| figure.charts.iter().any(Chart::has_values));
    figures
}

/// What came out, against the paper and against the model.
pub(crate) fn findings(summary: &Summary) -> Vec<String> {
    let mut sentences = vec![format!("{}.", link_in_words(summary))];
    let Some(&longest) = delays(summary).last() else { return sentences };
    for (contender, base) in [("OP-10", EAGER), ("OP-10", SEALED), ("auto", EAGER)] {
        let small = |row: &Row| row.point.size <= SMALL_BYTES;
        if let Some(times) = mean_ratio(summary, longest, contender, base, &small) {
            sentences.push(format!(
                "At {longest} ms one way, {contender} wrote {} times as much as {base}, in the mean over writes up to {} (the paper, \
                 64 ms, over its IPsec: up to 6.6).",
                number(times),
                long_size(SMALL_BYTES)
            ));
        }
    }
    sentences.extend(auto_against_link(summary, longest));
    sentences.extend(auto_against_best(summary));
    sentences.extend(model_in_words(summary));
    sentences.extend(encrypted_in_words(summary));
    sentences
}

pub(super) fn median(row: &Row, of: Number<'_>) -> Option<f64> {
    if !row.errors.is_empty() {
        return None;
    }
    Spread::of(row.runs.values().filter_map(of)).map(|spread| spread.median)
}

fn delay_of(row: &Row) -> Option<f64> {
    row.runs.values().find_map(|cell| cell.link.delay_ms)
}

fn delays(summary: &Summary) -> Vec<f64> {
    let mut delays: Vec<f64> = summary.rows.iter().filter_map(delay_of).collect();
    delays.sort_by(f64::total_cmp);
    delays.dedup();
    delays
}

fn sizes(summary: &Summary) -> Vec<u64> {
    let mut sizes: Vec<u64> = summary.rows.iter().map(|row| row.point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The sizes that were measured at every delay: means over these may be compared.
fn sizes_everywhere(summary: &Summary) -> Vec<u64> {
    let delays = delays(summary);
    let is_everywhere = |size: &u64| {
        let at = |delay: &f64| summary.rows.iter().any(|row| row.point.size == *size && delay_of(row) == Some(*delay));
        delays.iter().all(at)
    };
    sizes(summary).into_iter().filter(is_everywhere).collect()
}

/// `16 KiB, 128 KiB`.
fn sizes_in_words(summary: &Summary) -> String {
    sizes_everywhere(summary).into_iter().map(long_size).collect::<Vec<_>>().join(", ")
}

fn row<'a>(summary: &'a Summary, delay: f64, size: u64, contender: &str) -> Option<&'a Row> {
    // With several numbers of initiators, the fewest: the paper had one.
    let fitting = summary
        .rows
        .iter()
        .filter(|row| delay_of(row) == Some(delay) && row.point.size == size && row.contender == contender);
    fitting.min_by_key(|row| row.point.initiators)
}

fn link_in_words(summary: &Summary) -> String {
    let mut cells = summary.rows.iter().flat_map(|row| row.runs.values());
    cells
        .find(|cell| !cell.link.description.is_empty())
        .map_or_else(String::new, |cell| format!("The link: {}", cell.link.description))
}

fn exact(value: f64) -> Option<Value> {
    Some(Value::Measured { middle: value, low: value, high: value })
}

fn chart_by_size(summary: &Summary, delay: f64, axis: &str, of: Number<'_>) -> Chart {
    let sizes = sizes(summary);
    let value = |size: u64, contender: &str| {
        let row = row(summary, delay, size, contender)?;
        if !row.errors.is_empty() {
            return Some(Value::Failed);
        }
        let spread = Spread::of(row.runs.values().filter_map(of))?;
        Some(Value::Measured { middle: spread.median, low: spread.low, high: spread.high })
    };
    let series =
        |name: &String| Series { name: name.clone(), values: sizes.iter().map(|&size| value(size, name)).collect() };
    Chart {
        title: format!("{delay} ms one way"),
        axis: axis.to_owned(),
        groups: sizes.iter().copied().map(long_size).collect(),
        series: summary.contenders.iter().map(series).collect(),
        look: Look::Lines,
    }
}

fn by_delay(summary: &Summary, axis: &str, of: Number<'_>) -> Chart {
    let (delays, sizes) = (delays(summary), sizes_everywhere(summary));
    let value = |delay: f64, contender: &String| {
        let rows = sizes.iter().filter_map(|&size| row(summary, delay, size, contender));
        mean(rows.filter_map(|row| median(row, of))).and_then(exact)
    };
    let series =
        |name: &String| Series { name: name.clone(), values: delays.iter().map(|&delay| value(delay, name)).collect() };
    Chart {
        title: format!("By one-way delay; writes of {}", sizes_in_words(summary)),
        axis: axis.to_owned(),
        groups: delays.iter().map(|delay| format!("{delay} ms")).collect(),
        series: summary.contenders.iter().map(series).collect(),
        look: Look::Lines,
    }
}

fn improvement(summary: &Summary) -> Chart {
    let (delays, sizes) = (delays(summary), sizes_everywhere(summary));
    let others = summary.contenders.iter().filter(|name| *name != EAGER);
    let series = |name: &String| Series {
        name: name.clone(),
        values: delays
            .iter()
            .map(|&delay| {
                mean_ratio(summary, delay, name, EAGER, &|row| sizes.contains(&row.point.size)).and_then(exact)
            })
            .collect(),
    };
    Chart {
        title: format!("By one-way delay, mean over writes of {}", sizes_in_words(summary)),
        axis: "times as fast".into(),
        groups: delays.iter().map(|delay| format!("{delay} ms")).collect(),
        series: others.map(series).collect(),
        look: Look::Lines,
    }
}

fn model(summary: &Summary, delay: f64) -> Chart {
    let mut chart = Chart { series: Vec::new(), ..chart_by_size(summary, delay, "MiB/s", &|_| None) };
    let both: [(&str, Number<'_>); 2] =
        [("measured", &|cell| cell.throughput.mib_s), ("calculated", &|cell| cell.model.model_mib_s)];
    for name in [SEALED, "OP-2", "OP-10", "auto"].iter().filter(|name| summary.contenders.iter().any(|it| it == *name))
    {
        for (what, of) in both {
            let values = sizes(summary)
                .iter()
                .map(|&size| row(summary, delay, size, name).and_then(|row| median(row, of)).and_then(exact))
                .collect();
            chart.series.push(Series { name: format!("{name}, {what}"), values });
        }
    }
    chart
}

fn against_op_2(summary: &Summary) -> Chart {
    let longest = delays(summary).last().copied().unwrap_or(0.0);
    let number_of = |name: &String| name.strip_prefix("OP-").and_then(|n| n.parse::<u32>().ok());
    let mut depths: Vec<u32> = summary.contenders.iter().filter_map(number_of).collect();
    depths.sort_unstable();
    let ratio = |n: u32, size: u64| {
        let throughput =
            |n: u32| median(row(summary, longest, size, &format!("OP-{n}"))?, &|cell| cell.throughput.mib_s);
        exact(throughput(n)? / throughput(2)?)
    };
    let mut series =
        vec![Series { name: "ideal".into(), values: depths.iter().map(|&n| exact(f64::from(n) / 2.0)).collect() }];
    series.extend(
        sizes(summary)
            .into_iter()
            .take(8)
            .map(|size| Series { name: long_size(size), values: depths.iter().map(|&n| ratio(n, size)).collect() }),
    );
    Chart {
        title: format!("{longest} ms one way"),
        axis: "times OP-2".into(),
        groups: depths.iter().map(|n| format!("OP-{n}")).collect(),
        series: if depths.contains(&2) { series } else { Vec::new() },
        look: Look::Lines,
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let numbers: Vec<f64> = numbers.collect();
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

pub(super) fn mean_ratio(
    summary: &Summary,
    delay: f64,
    name: &str,
    base: &str,
    wanted: &dyn Fn(&Row) -> bool,
) -> Option<f64> {
    let throughput = |row: &Row| median(row, &|cell| cell.throughput.mib_s);
    mean(sizes(summary).into_iter().filter_map(|size| {
        let (one, other) = (row(summary, delay, size, name)?, row(summary, delay, size, base)?);
        if !wanted(one) {
            return None;
        }
        Some(throughput(one)? / throughput(other).filter(|rate| *rate > 0.0)?)
    }))
}

fn auto_against_link(summary: &Summary, delay: f64) -> Option<String> {
    let share = |of: Number<'_>| {
        let sizes = sizes(summary).into_iter().filter(|&size| size >= SMALL_BYTES);
        let shares = sizes.filter_map(|size| {
            let row = row(summary, delay, size, "auto")?;
            Some(median(row, &|cell| cell.throughput.mib_s)? / median(row, of)?)
        });
        let spread = Spread::of(shares.collect::<Vec<f64>>())?;
        let [median, low, high] = [spread.median, spread.low, spread.high].map(|share| share * 100.0);
        Some(format!("{median:.0} % ({low:.0} to {high:.0})"))
    };
    let of_socket = share(&|cell| cell.model.socket_mib_s)?;
    let of_link = share(&|cell| cell.model.link_payload_mib_s);
    let of_link =
        of_link.map_or_else(String::new, |share| format!(", and {share} of what the link's rate leaves for payload"));
    Some(format!(
        "At {delay} ms one way, auto carried {of_socket} of what a plain TCP connection did over the same link{of_link}, with writes of {} \
         and more.",
        long_size(SMALL_BYTES)
    ))
}

/// What `auto` does beside the best fixed depth, wherever both were measured: its share, and the place.
pub(super) fn auto_beside_best(summary: &Summary) -> Vec<(f64, String)> {
    let throughput = |row: &Row| median(row, &|cell| cell.throughput.mib_s);
    let beside = |auto: &Row| {
        let fixed = summary.rows.iter().filter(|row| row.point == auto.point && row.contender.starts_with("OP-"));
        let best = fixed.filter_map(|row| Some((throughput(row)?, &row.contender)));
        let (best, name) = best.max_by(|one, other| one.0.total_cmp(&other.0))?;
        Some((throughput(auto)? / best, format!("{}, where {name} was best", auto.point.in_words())))
    };
    summary.rows.iter().filter(|row| row.contender == "auto").filter_map(beside).collect()
}

fn auto_against_best(summary: &Summary) -> Option<String> {
    let found = auto_beside_best(summary);
    let (share, place) = found.iter().min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "auto did {:.0} % of the best fixed depth or more in each of {} places (least: {place}).",
        share * 100.0,
        found.len()
    ))
}

/// A place that link or latency limits.
pub(super) struct BesideModel {
    /// Measured over calculated.
    pub(super) ratio: f64,
    /// Where, and what was what.
    words: String,
    /// What else was seen there that limits; empty if nothing was.
    pub(super) reason: &'static str,
}

impl BesideModel {
    pub(super) fn is_within(&self) -> bool {
        (self.ratio - 1.0).abs() <= TOLERANCE
    }
}

/// Every place where both are known, and link or latency limit.
pub(super) fn beside_model(summary: &Summary) -> Vec<BesideModel> {
    let compare = |row: &Row| {
        let (measured, modelled) =
            median(row, &|cell| cell.throughput.mib_s).zip(median(row, &|cell| cell.model.model_mib_s))?;
        let limit = row.runs.values().next().map(|cell| cell.model.limit.as_str()).unwrap_or_default();
        let is_short = delay_of(row).is_none_or(|delay| 2.0 * delay < ROUND_TRIP_MS_MIN);
        let (ratio, reason) = (measured / modelled, reason(row));
        let words = format!(
            "{} {}, {}: measured {}, calculated {} MiB/s ({:+.0} %, {limit}{reason})",
            long_size(row.point.size),
            row.point.pattern,
            row.contender,
            number(measured),
            number(modelled),
            (ratio - 1.0) * 100.0
        );
        (!is_short && ["latency", "link"].contains(&limit)).then_some(BesideModel { ratio, words, reason })
    };
    summary.rows.iter().filter_map(compare).collect()
}

/// One sentence of the cells that link or latency limits, one for each that is off.
fn model_in_words(summary: &Summary) -> Vec<String> {
    let compared = beside_model(summary);
    if compared.is_empty() {
        return Vec::new();
    }
    let modelled = summary.rows.iter().filter(|row| median(row, &|cell| cell.model.model_mib_s).is_some()).count();
    let (count, elsewhere) = (compared.len(), modelled - compared.len());
    let off: Vec<String> = compared.into_iter().filter(|place| !place.is_within()).map(|place| place.words).collect();
    let mut sentences = vec![format!(
        "The model is within {:.0} % of the measurement in {} of the {count} places that link or latency limits; {elsewhere} others \
         are limited by processors, or have a round trip below {ROUND_TRIP_MS_MIN} ms, where the initiator's own work is as long as the waiting.",
        TOLERANCE * 100.0,
        count - off.len()
    )];
    let more = off.len().saturating_sub(NAMED_MAX);
    sentences.extend(off.into_iter().take(NAMED_MAX).map(|what| format!("Outside: {what}.")));
    if more > 0 {
        sentences.push(format!("Outside: {more} more; the table has them all."));
    }
    sentences
}

/// What the cell itself tells of why it is off the model.
fn reason(row: &Row) -> &'static str {
    let busy = |of: fn(&Cell) -> Option<f64>| median(row, &of).unwrap_or(0.0);
    let foreign = busy(|cell| cell.cpu.foreign_busy);
    if foreign > 0.3 {
        "; others, the emulator among them, had much of the processors"
    } else if busy(|cell| cell.cpu.initiator_busy) > 0.9 || busy(|cell| cell.cpu.target_busy) > 0.9 {
        "; a processor was full"
    } else if row.runs.values().any(|cell| cell.link.description.contains("loss")) {
        "; all that follows a lost packet waits a round trip for it, and TCP may back off"
    } else {
        ""
    }
}

fn encrypted_in_words(summary: &Summary) -> Option<String> {
    let of = |contender: &str, what: &dyn Fn(&Cell) -> Option<f64>| {
        mean(summary.rows.iter().filter(|row| row.contender == contender).filter_map(|row| median(row, what)))
    };
    let eager = of(EAGER, &|cell| cell.crypto.initiator_encrypted_per_byte)?;
    let sealed = of(SEALED, &|cell| cell.crypto.initiator_encrypted_per_byte)?;
    let wire = of(EAGER, &|cell| cell.model.wire_per_byte)?;
    Some(format!(
        "For each byte delivered the initiator encrypted {} bytes with S2-1 and {} with S2-5, and sent {} bytes of IP \
         packets. Our S2-1 is in user space, above TCP: it does not encrypt again what TCP sends again. IPsec, below TCP, encrypts every \
         packet that is sent, retransmissions included, so its share would be the bytes of packets.",
        number(eager),
        number(sealed),
        number(wire)
    ))
}
