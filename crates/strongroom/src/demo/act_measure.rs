//! Act 7: a small table. Plain iSCSI (S0) against the sealed volume (S2-5): throughput, and what the target spends on it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::act_keys::{BLOCK_BYTES, Cast, PLAIN_BENCH, SEALED_BENCH, utf8};
use super::files::read_whole;
use super::report::{Report, Row, print_table};
use super::stage::{Background, Stage};

/// The server writes its counters this often; wait a bit longer before reading them.
const STATS_SETTLE: Duration = Duration::from_millis(1300);

/// Measures and prints.
pub(super) fn table(stage: &Stage, report: &mut Report, cast: &Cast, server: &Background, bytes: u64) -> Result<()> {
    let first = &cast.initiators[0];
    let bytes = bytes.next_multiple_of(BLOCK_BYTES as u64);
    let input = stage.path("random");
    fill_with_noise(stage, &input, bytes)?;
    let checksum = read_whole(&input, |_| Ok(()))?;
    stage.run(cast.command(stage, first, &["volume", "format", &cast.url(SEALED_BENCH), "--yes"])?)?;

    let mut rows = Vec::new();
    for (scheme, url) in [("plain (S0)", cast.plain_url(PLAIN_BENCH)), ("sealed (S2-5)", cast.url(SEALED_BENCH))] {
        let output = stage.path("copied-back");
        let write = ["copy", utf8(&input)?, url.as_str(), "--quiet"];
        rows.push(measure(stage, cast, server, format!("{scheme}, write"), bytes, &write)?);
        let read = ["copy", url.as_str(), utf8(&output)?, "--quiet"];
        rows.push(measure(stage, cast, server, format!("{scheme}, read"), bytes, &read)?);
        let same = read_whole(&output, |_| Ok(()))? == checksum;
        report.check(same, format_args!("{scheme}: what was copied back is what was copied in"))?;
        fs::remove_file(&output)?;
    }
    print_table(&rows);
    report.say("One connection, 4 KiB blocks, both ends on this machine; writes end with a flush to disk.");
    let sealed = &rows[2..];
    let share = sealed.iter().map(|row| row.target_crypto_bytes as f64 / row.bytes as f64).fold(0.0, f64::max);
    report.check(share < 0.1, "for sealed data the target does cryptography on headers only")
}

fn measure(stage: &Stage, cast: &Cast, server: &Background, name: String, bytes: u64, command: &[&str]) -> Result<Row> {
    let crypto_before = crypto_bytes(cast)?;
    let cpu_before = server.cpu_time()?;
    let started = Instant::now();
    stage.run(cast.command(stage, &cast.initiators[0], command)?)?;
    let wall = started.elapsed();
    let target_cpu = server.cpu_time()? - cpu_before;
    let target_crypto_bytes = crypto_bytes(cast)? - crypto_before;
    Ok(Row { name, bytes, wall, target_cpu, target_crypto_bytes })
}

/// Bytes that the target's process has encrypted, decrypted or authenticated so far, as it says itself.
fn crypto_bytes(cast: &Cast) -> Result<u64> {
    thread::sleep(STATS_SETTLE);
    let text = fs::read_to_string(&cast.stats).context("the server wrote no counters")?;
    let stats: serde_json::Value = serde_json::from_str(&text)?;
    let field = |name: &str| stats["crypto"][name].as_u64().with_context(|| format!("no counter '{name}' in {text}"));
    Ok(field("encrypted_bytes")? + field("decrypted_bytes")?)
}

/// Bytes that neither compress nor repeat.
fn fill_with_noise(stage: &Stage, path: &Path, bytes: u64) -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut file = File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        stage.check()?;
        piece.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
        let length = left.min(piece.len() as u64);
        file.write_all(&piece[..length as usize])?;
        left -= length;
    }
    Ok(())
}
