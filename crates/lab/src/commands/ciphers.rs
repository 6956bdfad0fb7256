//! Which ciphers an experiment goes through, and whether the processor's AES instructions do them.

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom::seal_rate as measure;
use strongroom_block::{BlockSize, Suite};
use strongroom_lab::stream::Protection;
use strongroom_lab::{ProcessKind, check_processes};

/// Cipher suites and kinds of process.
#[derive(Args, Clone, Debug)]
pub(crate) struct CipherArgs {
    /// Cipher suites: aes-256-gcm, aes-128-gcm, chacha20-poly1305, `paper` for the lazy-crypto paper's own
    /// (aes192-cbc+hmac-md5), and `3des` for the WAN paper's (3des-cbc+hmac-md5).
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "aes-256-gcm")]
    pub(crate) suites: Vec<Suite>,
    /// Processes with the processor's AES instructions (hardware: the paper's S2-2, S2-4 and S2-6), without (software), or both:
    /// hardware,software. That the software ones do without is measured first.
    #[arg(long = "process", value_name = "LIST", value_delimiter = ',', default_value = "hardware")]
    processes: Vec<ProcessKind>,
}

/// How fast this process seals blocks of 64 KiB by AES-256-GCM. `bench --process software` starts it.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct SealRateArgs {}

impl CipherArgs {
    /// The kinds of process, each once, after it was measured that they are what they say.
    ///
    /// # Errors
    /// If the software kind cannot be had here.
    pub(crate) fn processes(&self) -> Result<Vec<ProcessKind>> {
        let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
        check_processes(&lab_binary, &self.processes)?;
        let mut kinds = self.processes.clone();
        kinds.dedup();
        Ok(kinds)
    }

    /// The same, for schemes that were named: S2-2, S2-4 and S2-6 are done by hardware.
    pub(crate) fn processes_for(&self, schemes: &str) -> Result<Vec<ProcessKind>> {
        let hardware =
            schemes.split(',').map(str::trim).find(|name| ["S2-2", "S2-4", "S2-6"].contains(&&*name.to_uppercase()));
        if let (Some(name), true) = (hardware, self.processes.contains(&ProcessKind::Software)) {
            bail!(
                "{name} is the paper's name for a scheme whose cryptography hardware does; name the software row (S2-1, S2-3 or S2-5), \
                 and --process says who does it"
            );
        }
        self.processes()
    }

    /// Every protection with every suite, each once.
    pub(crate) fn protections(&self, protections: &[Protection]) -> Vec<Protection> {
        let mut all = Vec::new();
        for &suite in &self.suites {
            for &protection in protections {
                let protection = protection.with_suite(suite);
                if !all.contains(&protection) {
                    all.push(protection);
                }
            }
        }
        all
    }
}

/// Prints the rate in bytes a second.
pub(crate) fn seal_rate() -> Result<()> {
    let block_size = BlockSize::new(65536).expect("a power of two");
    println!("{:.0}", measure(Suite::default(), block_size));
    Ok(())
}
