//! The second act: a volume whose keys are at a key server. Its owner decides there who can open it, and the storage server neither
//! decides nor knows.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::act_keys::{Cast, Initiator, free_port, new_identity, public_key, utf8};
use super::report::Report;
use super::stage::{Background, Stage};

const LEDGER: &str = "ledger";
const SIZE_BYTES: usize = 16 << 20;

/// The key server, and how it is reached.
pub(super) struct Keys {
    address: String,
    public_key: String,
    /// Stopped when dropped.
    _server: Background,
}

impl Keys {
    /// A command of somebody who calls the key server.
    fn command(&self, stage: &Stage, who: &Initiator, command: &[&str]) -> Result<Command> {
        let own =
            ["--identity", utf8(&who.identity)?, "--key-server", &self.address, "--key-server-key", &self.public_key];
        let mut command = stage.strongroom(&[command, &own].concat());
        command.env("XDG_CONFIG_HOME", who.identity.parent().expect("an identity lies in its initiator's directory"));
        Ok(command)
    }

    /// One that calls the target too.
    fn volume_command(&self, stage: &Stage, cast: &Cast, who: &Initiator, command: &[&str]) -> Result<Command> {
        let session = ["--initiator-name", &who.iqn, "--target-key", &cast.target_key];
        self.command(stage, who, &[command, &session].concat())
    }

    fn key(&self, stage: &Stage, who: &Initiator, command: &[&str]) -> Result<String> {
        stage.run(self.command(stage, who, &[&["key"], command].concat())?)
    }
}

/// Plays it.
pub(super) fn play(stage: &Stage, report: &mut Report, cast: &Cast) -> Result<()> {
    let [owner, colleague] = &cast.initiators;
    let outsider = &cast.third;
    let keys = start(stage, owner)?;
    let named = make(stage, cast)?;
    keys.key(stage, owner, &["create", LEDGER, "--domain", &named.0, "--id", &named.1])?;
    keys.key(stage, owner, &["grant", LEDGER, &public_key(stage, colleague)?, "--rights", "open,seal"])?;
    report.check(true, "a key server drew the volume's key; its owner, initiator 1, granted it to initiator 2")?;

    let (url, first, second) = (cast.url(LEDGER), stage.path("ledger.first"), stage.path("ledger.second"));
    let out = stage.path("ledger.out");
    fs::write(&first, text("first", SIZE_BYTES))?;
    fs::write(&second, text("second", SIZE_BYTES))?;
    let run = |who: &Initiator, command: &[&str]| stage.run(keys.volume_command(stage, cast, who, command)?);
    let copy_in = |file: &std::path::Path| run(owner, &["copy", utf8(file)?, &url, "--quiet"]);
    let copy_out = ["copy", &url, utf8(&out)?, "--overwrite", "--quiet"];
    run(owner, &["volume", "format", &url, "--yes"])?;
    copy_in(&first)?;
    run(colleague, &copy_out)?;
    report
        .check(fs::read(&out)? == fs::read(&first)?, "initiator 2 fetched the key and reads what initiator 1 wrote")?;

    let refused = |who: &Initiator| -> Result<bool> {
        let (status, said) = stage.try_run(keys.volume_command(stage, cast, who, &copy_out)?)?;
        Ok(!status.success() && said.contains("key server") && said.contains("strongroom key grant"))
    };
    report.check(refused(outsider)?, "initiator 3 may use the storage, but was granted no key: it reads nothing")?;

    let epoch = keys.key(stage, owner, &["revoke", LEDGER, &public_key(stage, colleague)?])?;
    copy_in(&second)?;
    run(owner, &copy_out)?;
    report.check(
        fs::read(&out)? == fs::read(&second)?,
        format_args!("initiator 2 is revoked; {} begins", epoch.trim()),
    )?;
    report.check(refused(colleague)?, "initiator 2 gets no key any more, and has none of what is written since")?;

    run(owner, &["volume", "reseal", &url])?;
    let shown = keys.key(stage, owner, &["show", LEDGER])?;
    report.check(
        shown.contains("epoch 1 destroyed"),
        "everything is resealed; epoch 1 is destroyed, and with it every older copy of the volume",
    )?;
    run(owner, &copy_out)?;
    report.check(
        fs::read(&out)? == fs::read(&second)?,
        "initiator 1 reads on; the storage server took no part in any of it",
    )
}

/// A key server of its own: identity, master key, configuration.
fn start(stage: &Stage, owner: &Initiator) -> Result<Keys> {
    let (identity, master, config) =
        (stage.path("keyserver.identity"), stage.path("master.key"), stage.path("keyserver.toml"));
    let server_key = new_identity(stage, &identity)?;
    stage.run(stage.strongroom(&["key", "new", "--for", "master", "--out", utf8(&master)?]))?;
    let address = format!("127.0.0.1:{}", free_port()?);
    // A short lease: an initiator that cannot reach the key server is cut off when it ends, and a reseal waits no longer for it.
    let text = format!(
        "directory = {:?}\nlisten = [{address:?}]\nnode_key = {:?}\nmaster_key = {:?}\nlease_s = 2\nlease_margin_s = 0\n\n\
         [[identity]]\nname = \"owner\"\nkey = {:?}\nroles = [\"creator\"]\n",
        utf8(&stage.path("keys"))?,
        utf8(&identity)?,
        utf8(&master)?,
        public_key(stage, owner)?,
    );
    fs::write(&config, text)?;
    let server = stage.start("keyserver", stage.strongroom(&["keyserver", "--config", utf8(&config)?]))?;
    Ok(Keys { address, public_key: server_key, _server: server })
}

/// Makes the volume; its sealing domain and its identifier.
fn make(stage: &Stage, cast: &Cast) -> Result<(String, String)> {
    let size = SIZE_BYTES.to_string();
    let mut arguments = vec!["volume", "create", LEDGER, "--size", &size, "--custody", "keyserver"];
    for peer in ["initiator-1", "initiator-2", "initiator-3"] {
        arguments.extend(["--peer", peer]);
    }
    arguments.extend(["--config", utf8(&cast.config)?]);
    let said = stage.run(stage.strongroom(&arguments))?;
    let named = |name: &str| {
        let mut words = said.split_ascii_whitespace().skip_while(|word| *word != name).skip(1);
        words.next().map(str::to_owned).with_context(|| format!("`volume create` did not say {name}"))
    };
    Ok((named("--domain")?, named("--id")?))
}

/// Something to write down.
fn text(what: &str, bytes: usize) -> Vec<u8> {
    format!("the {what} version of the ledger\n").into_bytes().into_iter().cycle().take(bytes).collect()
}
