//! `strongroom-lab keys`: how many keys a second a key server gives out, each in its audit log and on the disk before it leaves; and
//! what it costs an initiator that attaches a volume.

mod first_read;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::NodeKey;
use strongroom_keyserver::{
    Client, ClientOptions, Config, Database, KeyServer, LocalMasterKey, NewVolume, ServerOptions,
};
use strongroom_lab::{Latencies, Machine, report};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};

use first_read::FirstRead;
use strongroom::Table;

const DOMAIN: SealingDomain = SealingDomain([1; 16]);
/// What `make bench-keys` writes of docs/bench/keys.md.
const MARKS: [&str; 2] = ["<!-- keys: begin (made by `make bench-keys`; do not edit) -->", "<!-- keys: end -->"];

/// Key fetches a second, and the time to a first read, with a key server of its own on this machine.
#[derive(Args)]
#[command(after_help = "Example: strongroom-lab keys --clients 1,16,64 --work-dir /var/tmp --json keys.jsonl\n\n\
    A key is given out when its line of the audit log is on the disk: callers at the same time share one sync. The work directory \
    decides which disk that is. Then volumes are attached and a block is read, with a key in a file, with a key server, and with one \
    that has a standby, in turn.")]
pub(crate) struct KeysArgs {
    /// How many clients call at the same time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64")]
    clients: Vec<usize>,
    /// How long one measurement of fetches lasts.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often everything is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    runs: usize,
    /// How often each volume is attached, in each run; 0: not at all.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    attaches: usize,
    /// Where the key server keeps its database [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Write one JSON object for each measurement to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the tables into their section of this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A key server, and who may ask it.
struct Site {
    server: KeyServer,
    server_key: Arc<NodeKey>,
    admin: Arc<NodeKey>,
}

/// One measurement.
#[derive(Serialize)]
struct Measured {
    bench: &'static str,
    run: usize,
    /// The connection, or where the key is.
    way: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<usize>,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fetches_s: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
}

/// Runs the command.
pub(crate) fn run(args: &KeysArgs) -> Result<()> {
    if !(0.05..=3600.0).contains(&args.seconds) || args.clients.iter().any(|clients| !(1..=500).contains(clients)) {
        bail!("give --seconds 0.05 to 3600, and --clients 1 to 500 each");
    }
    if !(1..=1000).contains(&args.runs) || args.attaches > 100_000 {
        bail!("give --runs 1 to 1000, and --attaches up to 100000");
    }
    let machine = Machine::look();
    let dir = match &args.work_dir {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let dir = dir.context("cannot make a directory to work in; name another one with --work-dir")?;
    let site = Site::start(dir.path())?;
    let volume = NewVolume { id: VolumeId([1; 16]), name: "bench".into(), domain: DOMAIN };
    Client::new(site.options()).create(volume)?;
    let mut measured = Vec::new();
    for run in 0..args.runs {
        for (way, is_kept) in [("kept", true), ("new for each", false)] {
            for &clients in &args.clients {
                let (rate, latencies) = fetches(&site, clients, is_kept, Duration::from_secs_f64(args.seconds))?;
                let cell =
                    Measured { clients: Some(clients), fetches_s: Some(rate), ..cell("fetch", run, way, &latencies) };
                measured.push(cell);
            }
        }
    }
    if args.attaches > 0 {
        let mut reading = FirstRead::new(&site, dir.path())?;
        // The first ones find nothing in any cache.
        reading.round(0)?;
        for run in 0..args.runs {
            reading.ways.iter_mut().for_each(|way| way.times.clear());
            (0..args.attaches).try_for_each(|round| reading.round(round))?;
            measured.extend(reading.ways.iter().map(|way| cell("first read", run, way.name, &way.times)));
        }
        reading.stop();
    }
    site.server.stop();
    if let Some(path) = &args.json {
        let mut text = serde_json::to_string(&serde_json::json!({ "machine": machine }))? + "\n";
        for measured in &measured {
            let _ = writeln!(text, "{}", serde_json::to_string(measured)?);
        }
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        let before = fs::read_to_string(path).unwrap_or_default();
        let text = report::replace_section(&before, &section(&machine, &measured), MARKS);
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", tables(&measured));
    Ok(())
}

fn cell(bench: &'static str, run: usize, way: &str, latencies: &Latencies) -> Measured {
    let millis = |quantile| latencies.quantile_us(quantile).unwrap_or_default() / 1000.0;
    let (p50_ms, p99_ms) = (millis(0.5), millis(0.99));
    let count = latencies.count();
    Measured { bench, run, way: way.to_owned(), clients: None, count, fetches_s: None, p50_ms, p99_ms }
}

/// The median of the runs, and their lowest and highest.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match (values.first(), values.get(values.len() / 2), values.last()) {
        (Some(low), Some(middle), Some(high)) if values.len() > 1 => {
            format!("{middle:.digits$} [{low:.digits$}\u{2013}{high:.digits$}]")
        }
        (_, Some(only), _) => format!("{only:.digits$}"),
        _ => String::new(),
    }
}

/// What was measured the same way in every run, in the order of the first.
fn rows<'a>(measured: &'a [Measured], bench: &'a str) -> impl Iterator<Item = Vec<&'a Measured>> {
    let first = measured.iter().filter(move |cell| cell.bench == bench && cell.run == 0);
    first.map(move |first| {
        let same = |cell: &&Measured| (cell.bench, &cell.way, cell.clients) == (bench, &first.way, first.clients);
        measured.iter().filter(same).collect()
    })
}

fn cells(row: &[&Measured]) -> Vec<String> {
    let of = |value: fn(&Measured) -> f64, digits| spread(row.iter().map(|cell| value(cell)), digits);
    let mut cells = vec![row[0].way.clone()];
    if let Some(clients) = row[0].clients {
        cells.extend([clients.to_string(), of(|cell| cell.fetches_s.unwrap_or_default(), 0)]);
    }
    cells.extend([of(|cell| cell.p50_ms, 2), of(|cell| cell.p99_ms, 2)]);
    cells
}

fn tables(measured: &[Measured]) -> String {
    let mut fetches = Table::new(&["CONNECTION", ">CLIENTS", ">FETCHES/S", ">P50 MS", ">P99 MS"]);
    rows(measured, "fetch").for_each(|row| fetches.row(cells(&row)));
    let mut reads = Table::new(&["ATTACHED WITH A", ">P50 MS", ">P99 MS"]);
    rows(measured, "first read").for_each(|row| reads.row(cells(&row)));
    format!("{fetches}\n{reads}")
}

fn section(machine: &Machine, measured: &[Measured]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let fetches: String = rows(measured, "fetch").map(|row| line(cells(&row))).collect();
    let reads: String = rows(measured, "first read").map(|row| line(cells(&row))).collect();
    format!(
        "Made by `{}`; the median of the runs, with the lowest and highest in brackets. {}\n\n\
         | connection | clients | fetches a second | median, ms | 99 of 100, ms |\n|---|---:|---:|---:|---:|\n{fetches}\n\
         From the wish to attach to a first block that is opened, each in turn:\n\n\
         | the key comes from a | median, ms | 99 of 100, ms |\n|---|---:|---:|\n{reads}",
        machine.command,
        report::machine_in_words(machine)
    )
}

fn master() -> Result<LocalMasterKey> {
    let mut random = zeroize::Zeroizing::new([0; strongroom_seal::KEY_BYTES]);
    getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
    Ok(LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &random))?)
}

impl Site {
    fn start(dir: &Path) -> Result<Site> {
        let (server_key, admin) = (Arc::new(NodeKey::generate()), Arc::new(NodeKey::generate()));
        let directory = dir.join("keys");
        // A standby goes by the key of its primary here: one key fewer.
        let text = format!(
            "directory = {directory:?}\nlisten = [\"127.0.0.1:0\"]\nnode_key = \"unused\"\n[limits]\nconnections_per_identity = 1000\n\
             connections_max = 2000\nrequests_per_second = 1000000\nrepeated_lines_s = 0\n\
             [[identity]]\nname = \"bench\"\nkey = \"{}\"\nroles = [\"administrator\", \"creator\"]\n\
             [[identity]]\nname = \"standby\"\nkey = \"{}\"\nroles = [\"standby\"]\n",
            admin.public(),
            server_key.public()
        );
        let database = Database::open_or_create(&directory, &master()?)?;
        let options = ServerOptions { config: Config::parse(&text)?, node_key: Arc::clone(&server_key), database };
        Ok(Site { server: KeyServer::start(options)?, server_key, admin })
    }

    fn options(&self) -> ClientOptions {
        ClientOptions {
            servers: self.server.local_addresses().iter().map(ToString::to_string).collect(),
            server_keys: vec![self.server_key.public()],
            node_key: Arc::clone(&self.admin),
            timeout: Duration::from_secs(30),
        }
    }
}

fn fetches(site: &Site, clients: usize, is_kept: bool, time: Duration) -> Result<(f64, Latencies)> {
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let all = thread::scope(|scope| -> Result<Latencies> {
        let calling: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| -> Result<Latencies> {
                    let mut latencies = Latencies::default();
                    let mut client = Client::new(site.options());
                    // Once at least, however late this thread gets its turn.
                    loop {
                        if !is_kept {
                            client = Client::new(site.options());
                        }
                        let asked = Instant::now();
                        client.fetch(DOMAIN)?;
                        latencies.record(asked.elapsed().as_nanos() as u64);
                        if stop.load(Ordering::Relaxed) {
                            return Ok(latencies);
                        }
                    }
                })
            })
            .collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut all = Latencies::default();
        for thread in calling {
            let latencies = thread.join().expect("a client does not panic")?;
            all.add(&latencies.counts());
        }
        Ok(all)
    })?;
    Ok((all.count() as f64 / started.elapsed().as_secs_f64(), all))
}
