//! Act 1: identities, a volume key, volumes and the target's configuration, all made with the commands of this binary.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::DemoArgs;
use super::report::Report;
use super::stage::{Background, Stage};
use crate::units::show_size;

/// The sealed volume of the demo.
pub(super) const VAULT: &str = "vault";
/// The sealed and the plain volume to measure with.
pub(super) const SEALED_BENCH: &str = "bench-sealed";
pub(super) const PLAIN_BENCH: &str = "bench-plain";
/// Bytes in a block of every volume here.
pub(super) const BLOCK_BYTES: usize = 4096;

/// An initiator: what it is called, and where its secrets are.
pub(super) struct Initiator {
    pub(super) name: &'static str,
    pub(super) identity: PathBuf,
    pub(super) key: PathBuf,
    pub(super) iqn: String,
}

/// Everybody in the play.
pub(super) struct Cast {
    /// The directory of the target's volumes.
    pub(super) root: PathBuf,
    /// What the server writes its counters to.
    pub(super) stats: PathBuf,
    pub(super) config: PathBuf,
    port: u16,
    /// The scheme of the URLs of sealed volumes.
    transport: String,
    pub(super) target_key: String,
    pub(super) initiators: [Initiator; 2],
    /// One that the target knows too, without any key.
    pub(super) third: Initiator,
    /// An identity that the target does not know.
    pub(super) stranger: Initiator,
}

/// Makes all of it.
pub(super) fn prepare(stage: &Stage, report: &mut Report, args: &DemoArgs) -> Result<Cast> {
    let target_identity = stage.path("target.identity");
    let target_key = new_identity(stage, &target_identity)?;
    let initiators = [initiator(stage, "initiator-1")?, initiator(stage, "initiator-2")?];
    let third = initiator(stage, "initiator-3")?;
    let stranger = initiator(stage, "stranger")?;
    for (who, key) in [("target", &target_key), ("initiator 1", &public_key(stage, &initiators[0])?)] {
        report.say(format_args!("{who:<12} {key}"));
    }
    report.say(format_args!("{:<12} {}", "initiator 2", public_key(stage, &initiators[1])?));

    // The one thing that initiators share, and the target never sees.
    let made = stage.run(stage.strongroom(&["key", "new", "--out", utf8(&initiators[0].key)?]))?;
    fs::copy(&initiators[0].key, &initiators[1].key).context("cannot hand the key to the second initiator")?;
    report.say(format_args!("{:<12} {}", "the volume", made.lines().nth(1).unwrap_or_default()));

    let cast = Cast {
        root: stage.path("volumes"),
        stats: stage.path("stats.json"),
        config: stage.path("strongroom.toml"),
        port: free_port()?,
        transport: args.transport.clone(),
        target_key,
        initiators,
        third,
        stranger,
    };
    fs::write(&cast.config, cast.configuration(stage, &target_identity)?)?;
    create_volumes(stage, report, &cast, args)?;
    Ok(cast)
}

fn create_volumes(stage: &Stage, report: &mut Report, cast: &Cast, args: &DemoArgs) -> Result<()> {
    let vault_bytes = (args.files * 2).next_multiple_of(64 << 20).max(256 << 20);
    let bench_bytes = args.measure.next_multiple_of(BLOCK_BYTES as u64);
    let create = |name: &str, bytes: u64, more: &[&str]| {
        let size = bytes.to_string();
        let mut arguments = vec!["volume", "create", name, "--size", &size, "--config", utf8(&cast.config)?];
        arguments.extend(more);
        stage.run(stage.strongroom(&arguments))
    };
    create(VAULT, vault_bytes, &["--peer", "initiator-1", "--peer", "initiator-2"])?;
    create(SEALED_BENCH, bench_bytes, &["--peer", "initiator-1"])?;
    create(PLAIN_BENCH, bench_bytes, &["--plain", "--initiator", "*"])?;
    report.check(
        cast.root.join(VAULT).is_dir(),
        format_args!("a sealed volume of {}, whose key the target does not have", show_size(vault_bytes)),
    )
}

fn initiator(stage: &Stage, name: &'static str) -> Result<Initiator> {
    let home = stage.make_dir(name)?;
    let identity = home.join("identity");
    new_identity(stage, &identity)?;
    Ok(Initiator {
        name,
        identity,
        key: home.join("volume.key"),
        iqn: format!("iqn.2026-11.org.strongroom.demo:{name}"),
    })
}

pub(super) fn new_identity(stage: &Stage, path: &Path) -> Result<String> {
    stage.run(stage.strongroom(&["identity", "new", "--out", utf8(path)?]))?;
    show_identity(stage, path)
}

pub(super) fn public_key(stage: &Stage, initiator: &Initiator) -> Result<String> {
    show_identity(stage, &initiator.identity)
}

fn show_identity(stage: &Stage, path: &Path) -> Result<String> {
    Ok(stage.run(stage.strongroom(&["identity", "show", utf8(path)?]))?.trim().to_owned())
}

pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no TCP port is free")?.local_addr()?.port())
}

/// The demo makes its own paths, so they are text.
pub(super) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("the work directory's path is not UTF-8; choose another with --work-dir")
}

impl Cast {
    fn configuration(&self, stage: &Stage, target_identity: &Path) -> Result<String> {
        let mut text = format!(
            "root = {:?}\nlisten = [\"127.0.0.1:{}\"]\nnode_key = {:?}\n",
            utf8(&self.root)?,
            self.port,
            utf8(target_identity)?
        );
        for initiator in self.initiators.iter().chain([&self.third]) {
            text.push_str(&format!(
                "\n[[peer]]\nname = {:?}\nkey = {:?}\ninitiators = [{:?}]\n",
                initiator.name,
                public_key(stage, initiator)?,
                initiator.iqn
            ));
        }
        Ok(text)
    }

    /// Starts the target.
    pub(super) fn serve(&self, stage: &Stage, name: &str) -> Result<Background> {
        let arguments = ["serve", "--config", utf8(&self.config)?, "--stats-file", utf8(&self.stats)?];
        stage.start(name, stage.strongroom(&arguments))
    }

    /// The URL of a sealed volume.
    pub(super) fn url(&self, volume: &str) -> String {
        format!("{}://127.0.0.1:{}/{volume}", self.transport, self.port)
    }

    /// The URL of a plain volume, over plain iSCSI.
    pub(super) fn plain_url(&self, volume: &str) -> String {
        format!("iscsi://127.0.0.1:{}/iqn.2026-11.org.strongroom:{volume}/0", self.port)
    }

    /// The arguments by which an initiator says who it is, and whom and what it knows.
    pub(super) fn arguments<'a>(&'a self, who: &'a Initiator) -> Result<Vec<&'a str>> {
        Ok(vec![
            "--identity",
            utf8(&who.identity)?,
            "--initiator-name",
            &who.iqn,
            "--target-key",
            &self.target_key,
            "--key-file",
            utf8(&who.key)?,
        ])
    }

    /// A command of an initiator: `strongroom COMMAND… ` with who it is, remembering in a directory of its own.
    pub(super) fn command(&self, stage: &Stage, who: &Initiator, command: &[&str]) -> Result<std::process::Command> {
        let mut arguments = command.to_vec();
        arguments.extend(self.arguments(who)?);
        let mut command = stage.strongroom(&arguments);
        command.env("XDG_CONFIG_HOME", who.identity.parent().expect("an identity lies in its initiator's directory"));
        Ok(command)
    }
}
