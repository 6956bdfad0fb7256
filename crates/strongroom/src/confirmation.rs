//! The second question before something is done to a volume that somebody else uses: it names who that is, in the wording of the command that asks.

use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::foreign;
use strongroom_initiator::{VolumeUrl, Writer, WriterRole, describe_writer, writers};

use crate::access::AccessArgs;

/// Leaves out what keeps others' data.
#[derive(Args)]
pub(crate) struct ForceArgs {
    /// Do it although others are attached, or this key does not open what is on the volume. Asks for the initiator names of all who are
    /// attached, or for the volume's name if nobody is: on a terminal, or by --confirm.
    #[arg(long)]
    force: bool,
    /// With --force: the answer, for scripts; once for each name.
    #[arg(long, value_name = "INITIATOR-NAME", requires = "force")]
    confirm: Vec<String>,
}

/// Whether others may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    NotForced,
    Given,
}

impl ForceArgs {
    pub(crate) fn is_forced(&self) -> bool {
        self.force
    }

    /// With `--force`, has it confirmed.
    pub(crate) fn ask(&self, access: &AccessArgs, url: &VolumeUrl) -> Result<Confirmation> {
        if !self.force {
            return Ok(Confirmation::NotForced);
        }
        let others = writers(access.options(url)?).with_context(|| format!("cannot ask who uses {url}"))?;
        self.confirm(&others, url.file_name())?;
        Ok(Confirmation::Given)
    }

    /// As [`ForceArgs::ask`], where the target cannot be asked: nobody is known to be there.
    pub(crate) fn ask_blindly(&self, volume: &str) -> Result<()> {
        self.confirm(&[], volume)
    }

    fn confirm(&self, others: &[Writer], volume: &str) -> Result<()> {
        let is_there = |writer: &&Writer| !matches!(writer.role, WriterRole::Ended | WriterRole::TookOver);
        let others: Vec<&Writer> = others.iter().filter(is_there).collect();
        let mut wanted: BTreeSet<String> = others.iter().map(|writer| writer.initiator_name.clone()).collect();
        let (who, question) = match others.as_slice() {
            [] => (format!("nobody is known to use {volume}"), "its name"),
            _ => {
                let named: Vec<String> = others.iter().map(|writer| describe_writer(writer)).collect();
                let who = format!("{volume} is used by {}, and what they wrote goes too", named.join("; "));
                (who, if wanted.len() == 1 { "that initiator's name" } else { "the names of all these initiators" })
            }
        };
        if wanted.is_empty() {
            wanted.insert(volume.to_owned());
        }
        let given: BTreeSet<String> = match (self.confirm.is_empty(), io::stdin().is_terminal()) {
            (false, _) => self.confirm.iter().cloned().collect(),
            (true, true) => {
                println!("everything on {volume} will be lost, for good; {who}");
                print!("to confirm, type {question}: ");
                io::stdout().flush()?;
                let mut line = String::new();
                io::stdin().lock().read_line(&mut line)?;
                line.split_whitespace().map(str::to_owned).collect()
            }
            (true, false) => {
                bail!("--force needs a confirmation, and there is no terminal to ask on; {who}: {}", how(&wanted))
            }
        };
        if given != wanted {
            bail!("not confirmed, and nothing was changed: {who}; to confirm, {question}: {}", how(&wanted));
        }
        Ok(())
    }
}

fn how(wanted: &BTreeSet<String>) -> String {
    let arguments: Vec<String> = wanted.iter().map(|name| format!("--confirm {}", foreign(name))).collect();
    arguments.join(" ")
}
