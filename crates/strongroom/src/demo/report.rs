//! What the demo prints: numbered acts, checked statements, one table. Absent: what is checked.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The demo's voice. Every statement is either shown to be true or ends the demo.
pub(super) struct Report {
    started: Instant,
    act: u32,
    checks: u32,
}

impl Report {
    pub(super) fn new() -> Report {
        Report { started: Instant::now(), act: 0, checks: 0 }
    }

    /// Begins the next act.
    pub(super) fn act(&mut self, title: &str) {
        self.act += 1;
        println!("\n{}. {title}", self.act);
    }

    /// Says something that needs no proof.
    pub(super) fn say(&self, text: impl Display) {
        println!("     {text}");
    }

    /// States something that was just shown.
    ///
    /// # Errors
    /// If it was not: the demo has failed.
    pub(super) fn check(&mut self, shown: bool, statement: impl Display) -> Result<()> {
        if !shown {
            bail!("this should be true and is not: {statement}");
        }
        self.checks += 1;
        println!("  ok {statement}");
        Ok(())
    }

    /// How many statements were shown so far.
    pub(super) fn checks(&self) -> u32 {
        self.checks
    }

    /// Since the demo began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// One row of the table.
pub(super) struct Row {
    /// What was moved, and how.
    pub(super) name: String,
    /// Bytes of data moved.
    pub(super) bytes: u64,
    /// How long that took.
    pub(super) wall: Duration,
    /// CPU time of the target's process meanwhile.
    pub(super) target_cpu: Duration,
    /// Bytes that the target's process encrypted, decrypted or authenticated meanwhile.
    pub(super) target_crypto_bytes: u64,
}

/// Prints the table.
pub(super) fn print_table(rows: &[Row]) {
    println!("\n     {:<28} {:>10} {:>22} {:>26}", "", "MiB/s", "target CPU-s per GiB", "target's cryptography");
    for row in rows {
        let mib = row.bytes as f64 / f64::from(1 << 20);
        let gib = mib / 1024.0;
        println!(
            "     {:<28} {:>10.0} {:>22.2} {:>26}",
            row.name,
            mib / row.wall.as_secs_f64(),
            row.target_cpu.as_secs_f64() / gib,
            format!(
                "{} ({:.2} % of data)",
                crate::units::show_size(row.target_crypto_bytes),
                100.0 * row.target_crypto_bytes as f64 / row.bytes as f64
            )
        );
    }
    println!();
}
