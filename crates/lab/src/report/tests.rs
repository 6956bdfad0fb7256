//! Proves that what is shown is what was measured: medians, ratios of the same run, errors as errors, and pictures that are
//! well formed.

use super::measure::Measure;
use super::*;
use crate::cell::{CellKey, CpuCost, LatencyQuantiles, Throughput};
use crate::{Cell, Machine};

fn cell(contender: &str, size: u64, run: u32, mib_s: f64) -> Cell {
    Cell {
        key: CellKey {
            bench: "rawio".into(),
            contender: contender.into(),
            pattern: "randread".into(),
            size,
            depth: 16,
            initiators: 1,
            run,
            medium: "memory".into(),
            ..CellKey::default()
        },
        throughput: Throughput::new(1000, (mib_s * f64::from(1 << 20)) as u64, 1.0),
        latency: LatencyQuantiles { p50_us: Some(10.0), p99_us: Some(90.0), ..LatencyQuantiles::default() },
        cpu: CpuCost {
            target_cpu_s_per_gib: Some(1.0 / mib_s),
            target_cpu_ms_per_kio: Some(1.0),
            target_busy: Some(0.99),
            ..CpuCost::default()
        },
        ..Cell::default()
    }
}

fn results() -> Results {
    let mut cells = Vec::new();
    for size in [4096, 8192, 65536] {
        for (run, mib_s) in [(0, 100.0), (1, 300.0), (2, 200.0)] {
            cells.push(cell("S2-5", size, run, mib_s / 2.0));
            cells.push(cell("S0", size, run, mib_s));
        }
    }
    cells[6] = cells[6].clone().failed("the <cable> & all");
    Results { machines: vec![Machine { date: "today".into(), ..Machine::default() }], cells }
}

#[test]
fn rows_are_medians_and_ratios_are_of_the_same_run() {
    let summary = Summary::new(&results(), "rawio");
    assert_eq!(summary.contenders, ["S0", "S2-5"], "plain first");
    let place = summary.points()[0].clone();
    let (plain, sealed) = (summary.row(&place, "S0").unwrap(), summary.row(&place, "S2-5").unwrap());
    assert_eq!(plain.spread(Measure::Throughput), Some(Spread { median: 200.0, low: 100.0, high: 300.0 }));
    assert_eq!(
        sealed.ratio(plain, Measure::Throughput),
        Some(Spread { median: 0.5, low: 0.5, high: 0.5 }),
        "though runs differ by three"
    );
    assert_eq!(Spread::of([1.0, 2.0, 4.0, 9.0]).unwrap().median, 3.0);
    assert_eq!(Spread::of([]), None);
}

#[test]
fn errors_are_shown_and_give_no_numbers() {
    let results = results();
    let summary = Summary::new(&results, "rawio");
    let failed = summary.rows.iter().find(|row| !row.errors.is_empty()).unwrap();
    assert_eq!(failed.runs.len(), 2);
    assert_eq!(failed.spread(Measure::Throughput), None, "two good runs do not hide a bad one");
    let table = tables(&results);
    let line = table.lines().find(|line| line.contains("8 KiB") && line.contains("S2-5")).unwrap();
    assert!(line.contains("error") && !line.contains("150"), "{line}");
    let html = html::page(&results, &[summary]);
    assert!(html.contains("the &lt;cable&gt; &amp; all"), "what programs say is text, not markup");
}

#[test]
fn sentences_say_who_was_the_bottleneck() {
    let mut results = results();
    let summary = Summary::new(&results, "rawio");
    let sentence = &words::findings(&summary)[0];
    assert!(sentence.contains("4 KiB randread, depth 16: S2-5 did 100 MiB/s against S0's 200: 0.50×"), "{sentence}");
    assert!(sentence.contains("the target's processor was the bottleneck"), "{sentence}");
    results.cells.iter_mut().for_each(|cell| cell.cpu.target_busy = Some(0.5));
    assert!(words::findings(&Summary::new(&results, "rawio"))[0].contains("no ratio of targets"));
    for cell in &mut results.cells {
        (cell.cpu.target_busy, cell.cpu.foreign_busy) = (Some(1.0), Some(0.4));
    }
    let summary = Summary::new(&results, "rawio");
    assert!(
        words::findings(&summary)[0].contains("others took 40%"),
        "a processor that others fill is no bottleneck of ours"
    );
    assert!(words::reliability(&summary).contains("believe ratios"));
}

#[test]
fn every_file_is_made_and_a_document_keeps_what_people_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let (markdown, plots) = (dir.path().join("performance.md"), dir.path().join("bench"));
    std::fs::write(&markdown, "# Mine\n\nBefore.\n").unwrap();
    let outputs = Outputs {
        markdown: Some(markdown.clone()),
        html: Some(dir.path().join("report.html")),
        plots: Some(plots.clone()),
        ..Outputs::default()
    };
    write(&results(), &outputs).unwrap();
    let first = std::fs::read_to_string(&markdown).unwrap();
    std::fs::write(&markdown, format!("{first}\nAfter.\n")).unwrap();
    write(&results(), &outputs).unwrap();
    let second = std::fs::read_to_string(&markdown).unwrap();
    assert!(second.starts_with("# Mine\n\nBefore.\n") && second.ends_with("\nAfter.\n"), "{second}");
    assert_eq!(second.matches("What the experiments say").count(), 1);
    for link in second.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(dir.path().join(link).exists(), "{link}");
    }
    if cfg!(feature = "png") {
        let pixels = std::fs::read(plots.join("rawio-what-it-moved.png")).unwrap();
        assert!(pixels.starts_with(b"\x89PNG") && pixels.len() > 5000, "{} bytes", pixels.len());
    }
    assert!(write(&Results::default(), &outputs).unwrap_err().to_string().contains("--json"));
}

#[test]
fn numbers_have_three_digits() {
    for (value, text) in [(0.0, "0"), (1234.5, "1234"), (12.34, "12.3"), (1.0, "1"), (0.05, "0.05"), (100.0, "100")] {
        assert_eq!(strongroom::plot::number(value), text);
    }
}
