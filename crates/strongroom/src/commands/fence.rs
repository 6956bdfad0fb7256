//! `strongroom fence`: keeps another node of a cluster from writing to a volume, for cluster managers and people. What is said to the target is the
//! initiator's; how an attachment gets its key is `attach`'s.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use strongroom_block::foreign;
use strongroom_initiator::{FenceReport, FenceRequest, Registrant, ReservationKey, Victim, VolumeUrl, fence};

use crate::access::AccessArgs;

/// The exit status of `--status` where the node is not registered.
const NOT_REGISTERED: u8 = 3;

/// Fence a node of a cluster: it writes nothing more to the volume from the moment on that this command ends with status 0.
///
/// The node's registration is removed at the target (PREEMPT AND ABORT), its commands are aborted, and unregistered nodes cannot write. The
/// other nodes go on. The node has to have attached the volume with `--reservation-key`; so has this one, unless --register is given.
///
/// The exit status is 0 if the node is fenced, whether by this command or before; 1 if it is not, or may not be; 2 if the command line is wrong.
/// With --status it is 0 if the node is registered, and 3 if it is not.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom fence strongroom://storage/shared --reservation-key 0xa1 --victim 0xb2\n  \
    strongroom fence strongroom://storage/vault --reservation-key 0xa1 --register --victim iqn.2026-11.org.strongroom:initiator.node2 --json\n  \
    strongroom fence strongroom://storage/shared --list\n  \
    strongroom fence strongroom://storage/shared --status --victim 0xb2\n  \
    strongroom fence strongroom://storage/shared --reservation-key 0xa1 --release")]
pub(crate) struct FenceArgs {
    /// The volume: as for `strongroom attach`.
    url: VolumeUrl,
    /// The key of this node: 1 to 16 hexadecimal digits. It is no secret.
    #[arg(long, value_name = "KEY", required_unless_present_any = ["list", "status"])]
    reservation_key: Option<ReservationKey>,
    /// Whom to fence: the key of the node, or its initiator name [default: the only other node that is registered].
    #[arg(long, value_name = "KEY|IQN", value_parser = parse_victim, conflicts_with_all = ["list", "release"])]
    victim: Option<Victim>,
    /// This node need not have attached the volume: it is registered by the command, and stays so, because the victim is kept out only while somebody is
    /// registered. A fenced node must not be able to fence others, so give this only where the cluster manager knows that this node may.
    #[arg(long, conflicts_with_all = ["list", "status", "release"])]
    register: bool,
    /// Show who is registered; nothing is changed.
    #[arg(long, conflicts_with_all = ["status", "release", "reservation_key"])]
    list: bool,
    /// Say whether the victim is registered, and so can write; nothing is changed.
    #[arg(long, requires = "victim", conflicts_with_all = ["release", "reservation_key"])]
    status: bool,
    /// Give up the key of this node instead, with every attachment that has it: for a key left by `--register` that is not needed.
    #[arg(long)]
    release: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

fn parse_victim(text: &str) -> Result<Victim, String> {
    if let Ok(key) = text.parse() {
        return Ok(Victim::Key(key));
    }
    // RFC 7143 §4.2.7: the types of iSCSI names.
    match ["iqn.", "eui.", "naa."].iter().any(|kind| text.to_lowercase().starts_with(kind)) {
        true => Ok(Victim::Node(text.to_owned())),
        false => Err("neither a reservation key (1 to 16 hexadecimal digits) nor an initiator name (iqn.…)".to_owned()),
    }
}

impl FenceArgs {
    fn request(&self) -> FenceRequest {
        match self.reservation_key {
            Some(key) if self.release => FenceRequest::Release { key },
            Some(key) => {
                let victim = self.victim.clone().unwrap_or(Victim::Other);
                FenceRequest::Fence { key, victim, joins: self.register }
            }
            None => FenceRequest::List,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &FenceArgs) -> Result<ExitCode> {
    let (url, request) = (&args.url, args.request());
    let options = args.access.options(url)?;
    let report = fence(options, request.clone()).with_context(|| match &request {
        FenceRequest::Fence { .. } => format!("nobody was fenced at {url}, as far as is known"),
        FenceRequest::List | FenceRequest::Release { .. } => format!("cannot ask for the reservations of {url}"),
    })?;
    if let (true, Some(victim)) = (args.status, &args.victim) {
        return Ok(show_status(args, victim, &report));
    }
    match (&request, args.json) {
        (FenceRequest::Fence { .. }, true) => println!("{:#}", fenced_as_json(&report)),
        (_, true) => println!("{:#}", json!({ "registered": list_as_json(&report.registered) })),
        (FenceRequest::Fence { .. }, false) => show_fenced(&report),
        (_, false) => show_registered(&report.registered),
    }
    Ok(ExitCode::SUCCESS)
}

fn show_status(args: &FenceArgs, victim: &Victim, report: &FenceReport) -> ExitCode {
    let is_meant = |one: &&Registrant| match victim {
        Victim::Key(key) => one.key == *key,
        Victim::Node(name) => one.initiator_name == name.to_lowercase(),
        Victim::Other => false,
    };
    let found: Vec<Registrant> = report.registered.iter().filter(is_meant).cloned().collect();
    match args.json {
        true => println!("{:#}", json!({ "is_registered": !found.is_empty(), "registered": list_as_json(&found) })),
        false if found.is_empty() => println!("not registered"),
        false => show_registered(&found),
    }
    if found.is_empty() { ExitCode::from(NOT_REGISTERED) } else { ExitCode::SUCCESS }
}

fn show_registered(registered: &[Registrant]) {
    for one in registered {
        println!("{} {}", one.key, foreign(&one.initiator_name));
    }
    if registered.is_empty() {
        println!("nobody is registered");
    }
}

fn show_fenced(report: &FenceReport) {
    for one in &report.fenced {
        println!("fenced: {} {}", one.key, foreign(&one.initiator_name));
    }
    if report.fenced.is_empty() {
        println!("fenced already: no such node is registered, and who is not registered cannot write");
    }
    if report.ended_lease {
        println!("its writer lease is ended: another node can attach the volume");
    }
}

fn list_as_json(registered: &[Registrant]) -> Value {
    let entry = |one: &Registrant| json!({ "key": one.key.to_string(), "initiator": one.initiator_name, "holds_reservation": one.holds });
    registered.iter().map(entry).collect()
}

fn fenced_as_json(report: &FenceReport) -> Value {
    json!({
        "fenced": list_as_json(&report.fenced),
        "was_registered": !report.fenced.is_empty(),
        "ended_lease": report.ended_lease,
        "registered": list_as_json(&report.registered),
    })
}

#[cfg(test)]
mod tests {
    //! Proves what `--victim` understands.
    use super::*;

    #[test]
    fn a_victim_is_a_key_or_a_name() {
        assert_eq!(parse_victim("0xB2"), Ok(Victim::Key("b2".parse().unwrap())));
        assert_eq!(parse_victim("iqn.2026-11.test:bob"), Ok(Victim::Node("iqn.2026-11.test:bob".into())));
        for text in ["", "0", "bob", "node 2"] {
            assert!(parse_victim(text).unwrap_err().contains("hexadecimal"), "{text}");
        }
    }
}
