//! `strongroom key create`, `grant` and the like: administers the keys that a key server has. Secrets go into files, never to the
//! terminal.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use strongroom_block::{SealingDomain, VolumeId, foreign, with_foreign_parts};
use strongroom_handshake::PublicKey;
use strongroom_keyserver::{AuditHead, Client, NewVolume, Rights, VolumeInfo};

use crate::key_server::KeyServerArgs;
use crate::keys::parse_public_key;
use crate::table::Table;
use strongroom_keyfiles::secret_file;

/// As whom, and where.
#[derive(Args, Clone)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    server: KeyServerArgs,
    /// The file with this node's identity [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY")]
    identity: Option<PathBuf>,
    /// The file that lists known targets and key servers, one `HOST[:PORT] KEY` a line [default:
    /// ~/.config/strongroom/known_targets].
    #[arg(long = "known", value_name = "FILE", env = "STRONGROOM_KNOWN_TARGETS")]
    known: Option<PathBuf>,
}

impl CallArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.server.is_given()
    }

    fn client(&self) -> Result<Client> {
        self.server.client(self.identity.as_deref(), self.known.as_deref())
    }
}

/// What a key server can be asked.
#[derive(Subcommand)]
pub(crate) enum ServerCommand {
    /// Have the key server draw the key of a new volume; this identity then administers it.
    #[command(after_help = "Example: strongroom key create vault --key-server keys.example\n\n\
        Give --domain and --id as `strongroom volume create --custody keyserver` printed them: the volume is made at the target first.")]
    Create(CreateArgs),
    /// Give the keys of a key file into the key server's custody.
    #[command(
        after_help = "Example: strongroom key import vault --key-file ~/vault.key --domain 5f0c… --key-server keys.example\n\n\
        Destroy the file once the volume opens with the key server's keys; its copies too."
    )]
    Import(ImportArgs),
    /// Write all keys of a volume into a key file.
    #[command(after_help = "Example: strongroom key export vault --out ~/vault.key --key-server keys.example")]
    Export(ExportArgs),
    /// List the volumes that this identity has a right to; a server administrator sees all.
    List(ListArgs),
    /// Give an identity rights to a volume.
    #[command(
        after_help = "Example: strongroom key grant vault 'strongroom-ed25519 …' --rights open,seal --key-server keys.example"
    )]
    Grant(GrantArgs),
    /// Take all rights to a volume from an identity; a new epoch begins with it, which that identity cannot open.
    #[command(after_help = "Example: strongroom key revoke vault 'strongroom-ed25519 …' --key-server keys.example\n\n\
        What the identity had, it keeps. `strongroom volume reseal` puts what was written before under the new epoch; then \
        `strongroom key destroy-epoch` ends the old one.")]
    Revoke(RevokeArgs),
    /// Begin a new epoch: what is written from now on is sealed under a new key.
    Rotate(VolumeArgs),
    /// Destroy the key of an old epoch: what is still sealed under it is lost.
    DestroyEpoch(DestroyEpochArgs),
    /// Destroy all keys of a volume: everything in it is lost.
    Destroy(DestroyArgs),
    /// Print the audit log and its head; check its chain.
    #[command(after_help = "Examples:\n  \
        strongroom key audit --key-server keys.example\n  \
        strongroom key audit --verify --head 1207:5c… --key-server keys.example\n\n\
        Keep the head that it prints elsewhere: given back with --head, it shows whether anything up to there was changed.")]
    Audit(AuditArgs),
    /// Write a backup, sealed under the server's master key.
    Backup(BackupArgs),
    /// Make a standby the primary.
    Promote(PromoteArgs),
    /// Show how the key server is.
    Status(ListArgs),
}

/// One volume.
#[derive(Args)]
pub(crate) struct VolumeArgs {
    /// Its name at the key server, or its sealing domain.
    volume: String,
    #[command(flatten)]
    call: CallArgs,
}

/// `key create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// A name for people.
    name: String,
    /// The volume's identifier [default: a new one].
    #[arg(long, value_name = "UUID")]
    id: Option<VolumeId>,
    /// Its sealing domain [default: a new one].
    #[arg(long, value_name = "UUID")]
    domain: Option<SealingDomain>,
    /// Do nothing if this identity has rights to a key of that name and domain already.
    #[arg(long, requires = "domain")]
    if_missing: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// `key import`.
#[derive(Args)]
pub(crate) struct ImportArgs {
    /// A name for people.
    name: String,
    /// The file with the keys.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The sealing domain of the volume that is sealed with them.
    #[arg(long, value_name = "UUID")]
    domain: SealingDomain,
    /// The volume's identifier [default: a new one].
    #[arg(long, value_name = "UUID")]
    id: Option<VolumeId>,
    #[command(flatten)]
    call: CallArgs,
}

/// `key export`.
#[derive(Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// The file to make; it must not exist yet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// `key list` and `key status`.
#[derive(Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    call: CallArgs,
}

/// `key grant`.
#[derive(Args)]
pub(crate) struct GrantArgs {
    /// Its name at the key server, or its sealing domain.
    volume: String,
    /// Whom: the line that `strongroom identity show` prints there, in quotes.
    #[arg(value_name = "IDENTITY", value_parser = parse_public_key)]
    whom: PublicKey,
    /// open: get the keys and read. seal: write. administer: grant, revoke, rotate, destroy. These, and no others that it had.
    #[arg(long, value_name = "RIGHTS", default_value = "open,seal")]
    rights: Rights,
    #[command(flatten)]
    call: CallArgs,
}

/// `key revoke`.
#[derive(Args)]
pub(crate) struct RevokeArgs {
    /// Its name at the key server, or its sealing domain.
    volume: String,
    /// Whom: the line that `strongroom identity show` prints there, in quotes.
    #[arg(value_name = "IDENTITY", value_parser = parse_public_key)]
    whom: PublicKey,
    #[command(flatten)]
    call: CallArgs,
}

/// `key destroy-epoch`.
#[derive(Args)]
pub(crate) struct DestroyEpochArgs {
    /// Its name at the key server, or its sealing domain.
    volume: String,
    /// The epoch.
    epoch: u32,
    /// Do it, although what is still sealed under it is lost.
    #[arg(long)]
    yes: bool,
    /// Do not wait for initiators that cannot reach the key server and may still write under it.
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// `key destroy`.
#[derive(Args)]
pub(crate) struct DestroyArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Do it, although everything in the volume is lost.
    #[arg(long)]
    yes: bool,
}

/// `key audit`.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// Check the chain from its beginning, and print nothing but its head.
    #[arg(long)]
    verify: bool,
    /// A head that was kept: the log must have passed through it.
    #[arg(long, value_name = "LINES:HASH")]
    head: Option<AuditHead>,
    #[command(flatten)]
    call: CallArgs,
}

/// `key backup`.
#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The file to make; it must not exist yet.
    file: PathBuf,
    #[command(flatten)]
    call: CallArgs,
}

/// `key promote`.
#[derive(Args)]
pub(crate) struct PromoteArgs {
    /// Do it: the old primary must not come back as one.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// Runs the command.
pub(crate) fn run(command: ServerCommand) -> Result<()> {
    match command {
        ServerCommand::Create(args) => create(&args),
        ServerCommand::Import(args) => import(&args),
        ServerCommand::Export(args) => export(&args),
        ServerCommand::List(args) => list(&args.call),
        ServerCommand::Grant(args) => {
            let client = args.call.client()?;
            Ok(client.grant(resolve(&client, &args.volume)?, args.whom, args.rights)?)
        }
        ServerCommand::Revoke(args) => {
            let client = args.call.client()?;
            let epoch = client.revoke(resolve(&client, &args.volume)?, args.whom)?;
            println!("epoch {epoch}");
            Ok(())
        }
        ServerCommand::Rotate(args) => {
            let client = args.call.client()?;
            println!("epoch {}", client.rotate(resolve(&client, &args.volume)?)?);
            Ok(())
        }
        ServerCommand::DestroyEpoch(args) => {
            if !args.yes {
                bail!("what is still sealed under epoch {} would be lost; give --yes if that is meant", args.epoch);
            }
            let client = args.call.client()?;
            Ok(client.destroy_epoch(resolve(&client, &args.volume)?, args.epoch, args.now)?)
        }
        ServerCommand::Destroy(args) => {
            let name = &args.volume.volume;
            if !args.yes {
                bail!("everything in {name} would be lost; give --yes if that is meant");
            }
            let client = args.volume.call.client()?;
            Ok(client.destroy(resolve(&client, name)?)?)
        }
        ServerCommand::Audit(args) => audit(&args),
        ServerCommand::Backup(args) => backup(&args),
        ServerCommand::Promote(args) => promote(&args),
        ServerCommand::Status(args) => {
            print_status(&args.call.client()?.status()?);
            Ok(())
        }
    }
}

/// A volume by its sealing domain or its name.
fn resolve(client: &Client, volume: &str) -> Result<SealingDomain> {
    match volume.parse() {
        Ok(domain) => Ok(domain),
        Err(_) => Ok(client.find(volume).with_context(|| format!("volume {volume}"))?.domain),
    }
}

fn random() -> Result<[u8; 16]> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).context("the operating system gave no random bytes")?;
    Ok(random)
}

fn create(args: &CreateArgs) -> Result<()> {
    let id = args.id.map_or_else(|| random().map(VolumeId::from_random), Ok)?;
    let domain = args.domain.map_or_else(|| random().map(SealingDomain::from_random), Ok)?;
    let client = args.call.client()?;
    let known =
        if args.if_missing { client.find(&args.name).ok().filter(|known| known.domain == domain) } else { None };
    let info = match known {
        Some(known) => known,
        None => client.create(NewVolume { id, name: args.name.clone(), domain })?,
    };
    print_info(&info);
    Ok(())
}

fn import(args: &ImportArgs) -> Result<()> {
    let keys = strongroom_keyfiles::read_key_file(&args.key_file)?;
    if keys.volumes().iter().any(|known| known.claimed == args.domain && known.domain != args.domain) {
        bail!(
            "the volume is sealed in a domain of its own, which {} records and a key server does not know; move it with: strongroom volume \
             reseal --to keyserver",
            args.key_file.display()
        );
    }
    let id = args.id.map_or_else(|| random().map(VolumeId::from_random), Ok)?;
    let new = NewVolume { id, name: args.name.clone(), domain: args.domain };
    print_info(&args.call.client()?.import(new, &keys)?);
    Ok(())
}

fn export(args: &ExportArgs) -> Result<()> {
    let client = args.volume.call.client()?;
    let grant = client.export(resolve(&client, &args.volume.volume)?)?;
    secret_file::create(&args.out, &grant.keys.to_text())?;
    println!("{}", args.out.display());
    super::print_ids(&grant.keys);
    Ok(())
}

/// `key show`, of a volume.
pub(super) fn show(call: &CallArgs, volume: &str) -> Result<()> {
    let client = call.client()?;
    print_info(&client.info(resolve(&client, volume)?)?);
    Ok(())
}

fn print_info(info: &VolumeInfo) {
    let name = foreign(&info.name);
    println!("volume {name}\nid {}\ndomain {}\nrevision {}", info.id, info.domain, info.revision);
    for (epoch, id) in &info.epochs {
        let state = if *epoch == info.current_epoch { "current" } else { "old" };
        println!("epoch {epoch} id {id} {state}");
    }
    let mut gone = info.destroyed_epochs().peekable();
    while let Some(first) = gone.next() {
        let mut last = first;
        while let Some(next) = gone.next_if(|next| *next == last + 1) {
            last = next;
        }
        if first == last {
            println!("epoch {first} destroyed");
        } else {
            println!("epochs {first} to {last} destroyed, or never used");
        }
    }
    if !info.settles_in.is_zero() {
        println!("initiators may write under an old epoch for another {} s", info.settles_in.as_secs() + 1);
    }
    for (identity, rights) in &info.grants {
        println!("{rights}: {identity}");
    }
}

fn list(call: &CallArgs) -> Result<()> {
    let mut table = Table::new(&["NAME", "DOMAIN", ">EPOCH", ">OLD", ">GRANTS"]);
    for info in call.client()?.list()? {
        let old = info.epochs.len() - 1;
        table.row(vec![
            foreign(&info.name).to_string(),
            info.domain.to_string(),
            info.current_epoch.to_string(),
            old.to_string(),
            info.grants.len().to_string(),
        ]);
    }
    print!("{table}");
    Ok(())
}

fn audit(args: &AuditArgs) -> Result<()> {
    let client = args.call.client()?;
    let mut at: Option<AuditHead> = None;
    let mut met = args.head.is_none_or(|kept| kept.lines == 0);
    loop {
        let page = client.audit(at.map_or(1, |at| at.lines + 1))?;
        let mut head = at.unwrap_or(page.start);
        for line in &page.lines {
            head = head.then(line)?;
            if let Some(kept) = &args.head {
                head.check(kept)?;
                met |= kept.lines == head.lines;
            }
            if !args.verify {
                println!("{}", with_foreign_parts(&line.text));
            }
        }
        at = Some(head);
        if page.lines.is_empty() {
            if head != page.head {
                // More was written meanwhile, or the server shows another log than it has.
                head.check(&page.head)?;
                if page.head.lines < head.lines {
                    bail!("the key server's log has become shorter while it was read: do not trust it");
                }
                if client.audit(head.lines + 1)?.lines.is_empty() {
                    bail!("the key server reports lines that it does not send: do not trust it");
                }
                continue;
            }
            if let (false, Some(kept)) = (met, &args.head) {
                bail!("{}", strongroom_keyserver::AuditError::Truncated { found: head.lines, expected: kept.lines });
            }
            println!("head {head}");
            return Ok(());
        }
    }
}

fn backup(args: &BackupArgs) -> Result<()> {
    let client = args.call.client()?;
    let path = &args.file;
    if path.exists() {
        bail!("{} exists already; choose another name for the backup", path.display());
    }
    // Under another name until it is whole.
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let failed = || format!("cannot write {}", part.display());
    let mut file = File::create(&part).with_context(failed)?;
    let written = client.backup(|bytes| file.write_all(bytes));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&part);
        return Err(error.into());
    }
    file.sync_all().with_context(failed)?;
    std::fs::rename(&part, path).with_context(failed)?;
    println!("{}", path.display());
    Ok(())
}

fn promote(args: &PromoteArgs) -> Result<()> {
    if !args.yes {
        bail!(
            "the primary that this standby follows must be gone, or be stopped now, and comes back only as a standby; give --yes if \
             that is so"
        );
    }
    print_status(&args.call.client()?.promote()?);
    Ok(())
}

fn print_status(status: &strongroom_keyserver::ServerStatus) {
    println!("role {}\ngeneration {}\nsequence {}", status.role, status.generation, status.sequence);
    println!("volumes {}\naudit {}", status.volumes, status.head);
    if let Some(sequence) = status.standby_sequence {
        println!("standby {sequence}");
    }
}
