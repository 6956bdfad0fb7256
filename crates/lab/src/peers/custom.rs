//! A target that a person names by a command line: gotgt, SPDK, SCST's user-space handler, or a script around one.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::serve::{Request, Served, TARGET_NAME};
use crate::programs::program;
use crate::{Background, BenchError};

/// Some take their time.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// `NAME=COMMAND` or `NAME/LUN=COMMAND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomPeer {
    /// As tables name it.
    pub name: String,
    /// Its logical unit.
    pub lun: u16,
    /// A shell's command line that stays in the foreground and serves `{file}` (of `{bytes}` bytes, in blocks of `{block}`)
    /// as the target `{iqn}` at `{address}`, that is `{host}` and `{port}`, without a login. `{dir}` is its to use.
    pub command: String,
}

impl FromStr for CustomPeer {
    type Err = BenchError;
    fn from_str(text: &str) -> Result<CustomPeer, BenchError> {
        let asked = |problem: &str| {
            let example = "--peer 'gotgt/1=/opt/run-gotgt {file} {port} {iqn}'";
            BenchError::Asked(format!(
                "'{text}' is no peer: {problem}; write NAME=COMMAND or NAME/LUN=COMMAND, as in {example}"
            ))
        };
        let (name, command) = text.split_once('=').ok_or_else(|| asked("it has no command"))?;
        let (name, lun) = name.split_once('/').unwrap_or((name, "0"));
        let lun = lun.parse().map_err(|_| asked("its LUN is no number"))?;
        let usable = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || !name.chars().all(usable) {
            return Err(asked("its name needs letters, digits, '-', '.' or '_'"));
        }
        if !["{port}", "{address}"].iter().any(|place| command.contains(place)) {
            return Err(asked("its command says neither {port} nor {address}, so it would listen anywhere"));
        }
        Ok(CustomPeer { name: name.to_owned(), lun, command: command.to_owned() })
    }
}

impl CustomPeer {
    /// Starts it at `address`.
    pub(super) fn start(&self, request: &Request<'_>, address: SocketAddr) -> Result<Served, BenchError> {
        let file = request.volume_file()?;
        let mut shell = program("sh", &[]);
        shell.arg("-c").arg(self.filled_in(request, address, &file.path.display().to_string()));
        let mut daemon = Background::start(&self.name, shell, request.target_cpus(), request.directory)?;
        daemon.wait_for_port(address, READY_TIMEOUT)?;
        let mut served = Served::iscsi(address, self.lun, false);
        served.target.push(daemon);
        served.files.push(file);
        Ok(served)
    }

    fn filled_in(&self, request: &Request<'_>, address: SocketAddr, file: &str) -> String {
        [
            ("{file}", file.to_owned()),
            ("{bytes}", request.bytes.to_string()),
            ("{block}", request.block_bytes.to_string()),
            ("{iqn}", TARGET_NAME.to_owned()),
            ("{address}", address.to_string()),
            ("{host}", address.ip().to_string()),
            ("{port}", address.port().to_string()),
            ("{dir}", request.directory.display().to_string()),
        ]
        .into_iter()
        .fold(self.command.clone(), |command, (place, value)| command.replace(place, &value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_lun_and_a_command() {
        let peer: CustomPeer = "gotgt/1=/opt/gotgt --port {port} --file {file}".parse().unwrap();
        assert_eq!((peer.name.as_str(), peer.lun), ("gotgt", 1));
        assert_eq!("x=y {address}".parse::<CustomPeer>().unwrap().lun, 0);
        for (text, part) in
            [("gotgt", "no command"), ("gotgt/a=x {port}", "LUN"), ("a b=x {port}", "letters"), ("gotgt=x", "{port}")]
        {
            let error = text.parse::<CustomPeer>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("NAME=COMMAND"), "{error}");
        }
    }
}
