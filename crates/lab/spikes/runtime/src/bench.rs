//! Runs every flavour under every workload, interleaved, and prints medians as a table.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::client::{self, Load};
use crate::protocol::{FILE_BYTES, Kind, pin};
use crate::servers::FLAVOURS;

const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;

pub struct Options {
    /// A program that speaks the same protocol: `runtime_server` of `crates/net`.
    product: Option<String>,
    seconds: f64,
    repeats: usize,
    only: String,
}

impl Options {
    pub fn parse(args: &[&str]) -> Option<Options> {
        let mut options = Options { product: None, seconds: 0.6, repeats: 5, only: String::new() };
        for pair in args.chunks(2) {
            match *pair {
                ["--seconds", value] => options.seconds = value.parse().ok()?,
                ["--repeats", value] => options.repeats = value.parse().ok()?,
                ["--product", value] => options.product = Some(value.to_owned()),
                ["--only", value] => options.only = value.to_owned(),
                _ => return None,
            }
        }
        Some(options)
    }
}

#[derive(Clone, Copy)]
enum Workload {
    Net(Load),
    Reads { len_bytes: usize, depth: usize },
}

#[derive(Clone, Copy, Default)]
struct Measured {
    ops_per_second: f64,
    cpu_us_per_op: f64,
    calls_per_op: Option<f64>,
}

fn workloads() -> Vec<(String, Workload)> {
    let mut all = Vec::new();
    for (kind, name) in [(Kind::Memory, "memory"), (Kind::File, "file")] {
        for len_bytes in [4096, 65536] {
            for (connections, depth) in [(1, 1), (1, 16), (1, 64), (16, 1)] {
                let shape =
                    if connections > 1 { format!("{connections} conn. x {depth}") } else { format!("depth {depth}") };
                let label = format!("{name} {} KiB, {shape}", len_bytes / 1024);
                all.push((label, Workload::Net(Load { kind, len_bytes, connections, depth })));
            }
        }
    }
    for len_bytes in [4096, 65536] {
        for depth in [1, 16, 64] {
            let label = format!("reads alone {} KiB, depth {depth}", len_bytes / 1024);
            all.push((label, Workload::Reads { len_bytes, depth }));
        }
    }
    all
}

pub fn run(options: Options) {
    let file = std::env::temp_dir().join(format!("runtime-spike-{}", std::process::id()));
    std::fs::write(&file, vec![7; FILE_BYTES as usize]).expect("room for the file");
    let counts_calls =
        Command::new("perf").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !counts_calls {
        eprintln!("`perf` is not installed: system calls are not counted");
    }
    pin(CLIENT_CPU);
    let candidates = candidates(&options);
    let workloads: Vec<_> = workloads().into_iter().filter(|(label, _)| label.contains(&options.only)).collect();
    let mut results: BTreeMap<(usize, usize), Vec<Measured>> = BTreeMap::new();
    for repeat in 0..options.repeats {
        eprintln!("round {} of {}", repeat + 1, options.repeats);
        for (row, (_, workload)) in workloads.iter().enumerate() {
            // Another order each round, so that a disturbance does not always hit the same one.
            for turn in 0..candidates.len() {
                let column = (turn + repeat) % candidates.len();
                if skips(&candidates[column], *workload) {
                    continue;
                }
                let measured = measure(&candidates[column], *workload, &file, options.seconds, false);
                results.entry((row, column)).or_default().push(measured);
            }
        }
    }
    if counts_calls {
        eprintln!("counting system calls");
        for (row, (_, workload)) in workloads.iter().enumerate() {
            for (column, candidate) in candidates.iter().enumerate() {
                if skips(candidate, *workload) {
                    continue;
                }
                let calls = measure(candidate, *workload, &file, options.seconds.min(0.5), true).calls_per_op;
                results.entry((row, column)).or_default()[0].calls_per_op = calls;
            }
        }
    }
    let _ = std::fs::remove_file(&file);
    print(&candidates, &workloads, &results);
}

fn print(
    candidates: &[Candidate],
    workloads: &[(String, Workload)],
    results: &BTreeMap<(usize, usize), Vec<Measured>>,
) {
    let names: Vec<String> = candidates.iter().map(Candidate::name).collect();
    println!("| workload | {} |", names.join(" | "));
    println!("|---|{}", "---:|".repeat(names.len()));
    for (row, (label, _)) in workloads.iter().enumerate() {
        print!("| {label} |");
        for column in 0..names.len() {
            let Some(runs) = results.get(&(row, column)) else {
                print!(" |");
                continue;
            };
            let median = |field: fn(&Measured) -> f64| {
                let mut values: Vec<f64> = runs.iter().map(field).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            let calls = runs[0].calls_per_op.map_or("?".to_owned(), |calls| format!("{calls:.2}"));
            let (ops, cpu) = (median(|run| run.ops_per_second), median(|run| run.cpu_us_per_op));
            print!(" {:.1} k/s, {cpu:.1} us, {calls} |", ops / 1000.0);
        }
        println!();
    }
    std::io::stdout().flush().expect("a place to print");
}

fn measure(candidate: &Candidate, workload: Workload, file: &Path, seconds: f64, count_calls: bool) -> Measured {
    match workload {
        Workload::Net(load) => measure_net(candidate, load, file, seconds, count_calls),
        Workload::Reads { len_bytes, depth } => {
            measure_reads(candidate.flavour, len_bytes, depth, file, seconds, count_calls)
        }
    }
}

/// What to measure: the four candidates, and on request what came of it, on io_uring and on epoll.
fn candidates(options: &Options) -> Vec<Candidate> {
    let spike = FLAVOURS.map(|flavour| Candidate { flavour, product: None });
    let product = ["io_uring", "epoll"].map(|flavour| Candidate { flavour, product: options.product.clone() });
    spike.into_iter().chain(product.into_iter().filter(|candidate| candidate.product.is_some())).collect()
}

#[derive(Clone)]
struct Candidate {
    flavour: &'static str,
    product: Option<String>,
}

impl Candidate {
    fn name(&self) -> String {
        if self.product.is_some() { format!("net/{}", self.flavour) } else { self.flavour.to_owned() }
    }

    fn server(&self) -> Command {
        let mut command = match &self.product {
            Some(program) => Command::new(program),
            None => {
                let mut command = this_program();
                command.arg("serve");
                command
            }
        };
        command.arg(self.flavour);
        command
    }
}

/// The product's runtime does no file reads of its own.
fn skips(candidate: &Candidate, workload: Workload) -> bool {
    candidate.product.is_some() && matches!(workload, Workload::Reads { .. })
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("a path to this program"))
}

fn measure_net(candidate: &Candidate, load: Load, file: &Path, seconds: f64, count_calls: bool) -> Measured {
    let mut server: Child = candidate
        .server()
        .arg(SERVER_CPU.to_string())
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let mut port = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut port).expect("the server's port");
    let port = port.trim().parse().expect("a port number");
    let duration = Duration::from_secs_f64(seconds);
    let mut measured = Measured::default();
    if count_calls {
        // Warm up (threads start), then count while a known number of operations runs.
        client::run(port, load, duration / 5);
        let counter = Command::new("perf")
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &server.id().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("perf starts");
        std::thread::sleep(Duration::from_millis(300));
        let outcome = client::run(port, load, duration);
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(counter.id() as i32, libc::SIGINT) };
        let output = counter.wait_with_output().expect("perf ends");
        // The client's warm-up ran as well: a tenth of the time on top.
        measured.calls_per_op = parse_count(&output.stderr).map(|calls| calls / (outcome.ops as f64 * 1.1));
    } else {
        let outcome = client::run(port, load, duration);
        measured.ops_per_second = outcome.ops as f64 / outcome.elapsed.as_secs_f64();
        measured.cpu_us_per_op = outcome.server_cpu_us as f64 / outcome.ops as f64;
    }
    server.kill().expect("our own child");
    server.wait().expect("our own child");
    measured
}

fn measure_reads(
    flavour: &str,
    len_bytes: usize,
    depth: usize,
    file: &Path,
    seconds: f64,
    count_calls: bool,
) -> Measured {
    let mut command = if count_calls {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter"]).arg(std::env::current_exe().expect("a path"));
        perf
    } else {
        this_program()
    };
    let output = command
        .args(["reads", flavour, &SERVER_CPU.to_string()])
        .arg(file)
        .args([&len_bytes.to_string(), &depth.to_string(), &seconds.to_string()])
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [ops, elapsed_us, cpu_us] = numbers[..] else { panic!("{text}{}", String::from_utf8_lossy(&output.stderr)) };
    Measured {
        ops_per_second: ops / elapsed_us * 1e6,
        cpu_us_per_op: cpu_us / ops,
        calls_per_op: count_calls.then(|| parse_count(&output.stderr).map(|calls| calls / ops)).flatten(),
    }
}

fn parse_count(perf_output: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(perf_output);
    text.lines().find(|line| line.contains("sys_enter"))?.split(',').next()?.parse().ok()
}
