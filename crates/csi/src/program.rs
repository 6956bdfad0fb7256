//! The program's own commands, which do on a node what needs keys and devices: each in a process of its own. An attachment is one that stays.
//!
//! Secrets reach a command as the name of a file, never as an argument. Absent: which command is run when.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use tonic::{Code, Status};

use crate::error::{of_program, of_system};

/// The exit status of a detach after which data that programs wrote is not at the target.
const DATA_LOST: i32 = 3;
/// Most of what a command says that is looked at, in bytes.
const WORDS_BYTES_MAX: usize = 64 << 10;
/// How long a volume may take to be attached, in seconds: another node's lease may have to end first.
const START_SECONDS: u32 = 240;

/// Where attachments run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AttachmentHome {
    /// Beside the driver. They outlive it where its end leaves other processes alone.
    #[default]
    Here,
    /// As services of the host's systemd, in the host's namespaces: they outlive the driver's container. The host has the program at this path.
    Host(PathBuf),
}

/// How commands are run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Where attachments run.
    pub home: AttachmentHome,
    /// What says who this node is and whom it knows: `--identity=FILE`, `--known=FILE`.
    pub identity: Vec<OsString>,
    /// What says which keys the target may have, if not what it knows: `--target-key=KEY`.
    pub target_keys: Vec<OsString>,
    /// What says where key servers are, of the same commands.
    pub key_server: Vec<OsString>,
}

/// An attachment, as `attach list --json` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct AttachmentEntry {
    /// The directory in which it is a file.
    pub(crate) directory: PathBuf,
    /// Where its file system is mounted.
    pub(crate) mount: Option<PathBuf>,
    /// Its block device.
    pub(crate) device: Option<PathBuf>,
    pub(crate) state: EntryState,
    /// Why it is not connected.
    pub(crate) disconnected: Option<String>,
    /// Writes that were lost.
    pub(crate) losses: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EntryState {
    Serving,
    EndedWithLosses,
    Died,
}

/// Arguments of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments(Vec<OsString>);

impl Arguments {
    pub(crate) fn of<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Arguments {
        Arguments(arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect())
    }

    pub(crate) fn flag(&mut self, flag: &str) {
        self.0.push(flag.into());
    }

    pub(crate) fn push(&mut self, argument: &OsStr) {
        self.0.push(argument.to_owned());
    }

    /// What stands for itself, behind all options.
    pub(crate) fn name(&mut self, name: &str) {
        self.flag("--");
        self.flag(name);
    }

    /// An option and its value, in one argument: a value is never taken for an option.
    pub(crate) fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let mut option = OsString::from(format!("--{name}="));
        option.push(value);
        self.0.push(option);
    }
}

impl Program {
    /// Attaches a volume; returns when programs can use it. `unit`: what its service is called.
    ///
    /// # Errors
    /// Why it is not attached, as a status.
    pub(crate) fn attach(&self, arguments: Arguments, unit: &str, log: &Path) -> Result<(), Status> {
        let what = "cannot attach the volume";
        let AttachmentHome::Host(program) = &self.home else {
            return self.succeed(what, &with("attach", arguments)).map(drop);
        };
        let _ = fs::remove_file(log);
        let mut command = host_command();
        command.arg("systemd-run").args(["--quiet", "--collect", "--service-type=notify"]);
        command.arg(format!("--unit={unit}"));
        let mut log_property = OsString::from("--property=StandardError=append:");
        log_property.push(log);
        command.arg(log_property);
        for property in unit_properties() {
            command.arg(format!("--property={property}"));
        }
        // Where it remembers what volumes claim to be: where the driver's other commands do.
        if let Some(home) = std::env::var_os("HOME") {
            let mut variable = OsString::from("--setenv=HOME=");
            variable.push(home);
            command.arg(variable);
        }
        command.arg("--").arg(program).arg("attach").args(&arguments.0).arg("--foreground");
        let output = run(command)?;
        if output.status.success() {
            return Ok(());
        }
        let said = fs::read(log).unwrap_or_default();
        let words = if said.is_empty() { last_words(&output.stderr) } else { last_words(&said) };
        Err(of_program(what, &words))
    }

    /// Makes a sealed volume usable with its key: formats it if it is new, seals what it grew by.
    ///
    /// # Errors
    /// Why it is not, as a status.
    pub(crate) fn prepare(&self, arguments: Arguments) -> Result<(), Status> {
        let mut all = Arguments::of(["volume", "prepare"]);
        all.0.extend(arguments.0);
        self.succeed("cannot prepare the volume", &all).map(drop)
    }

    /// Has the key server draw the key of a volume, unless it has one.
    ///
    /// # Errors
    /// Why it did not, as a status.
    pub(crate) fn create_key(&self, arguments: Arguments) -> Result<(), Status> {
        let mut all = Arguments::of(["key", "create", "--if-missing"]);
        all.0.extend(arguments.0);
        self.succeed("cannot make the volume's key", &all).map(drop)
    }

    /// Ends an attachment, or removes what one has left whose process has died.
    ///
    /// # Errors
    /// Why it is still attached; `DATA_LOSS` if it is not any more and writes were lost, once.
    pub(crate) fn detach(&self, directory: &Path) -> Result<(), Status> {
        let mut arguments = Arguments::of(["detach", "--"]);
        arguments.0.push(directory.into());
        let output = run(self.command(&arguments))?;
        match output.status.code() {
            Some(0) => Ok(()),
            Some(DATA_LOST) => Err(Status::new(
                Code::DataLoss,
                of_program("the volume is detached", &last_words(&output.stderr)).message(),
            )),
            _ => Err(of_program("cannot detach the volume", &last_words(&output.stderr))),
        }
    }

    /// All attachments of this machine.
    ///
    /// # Errors
    /// What the command says, as a status.
    pub(crate) fn attachments(&self) -> Result<Vec<AttachmentEntry>, Status> {
        let output = self.succeed("cannot list attachments", &Arguments::of(["attach", "list", "--json"]))?;
        serde_json::from_slice(&output.stdout).map_err(|error| of_system("read the list of attachments", error))
    }

    /// Runs another program of the machine that attachments run on: one that enlarges a file system.
    ///
    /// # Errors
    /// What it says, as a status.
    pub(crate) fn run_tool(&self, tool: &str, arguments: &[&OsStr]) -> Result<(), Status> {
        let mut command = match &self.home {
            AttachmentHome::Here => Command::new(tool),
            AttachmentHome::Host(_) => {
                let mut command = host_command();
                command.arg(tool);
                command
            }
        };
        command.args(arguments);
        let output = run(command)?;
        if output.status.success() { Ok(()) } else { Err(of_program(tool, &last_words(&output.stderr))) }
    }

    fn succeed(&self, what: &str, arguments: &Arguments) -> Result<Output, Status> {
        let output = run(self.command(arguments))?;
        if output.status.success() { Ok(output) } else { Err(of_program(what, &last_words(&output.stderr))) }
    }

    fn command(&self, arguments: &Arguments) -> Command {
        let mut command = match &self.home {
            AttachmentHome::Here => Command::new(&self.path),
            AttachmentHome::Host(program) => {
                let mut command = host_command();
                command.arg(program);
                command
            }
        };
        command.args(&arguments.0);
        command
    }
}

fn with(command: &str, arguments: Arguments) -> Arguments {
    let mut all = Arguments::of([command]);
    all.0.extend(arguments.0);
    all
}

/// In the namespaces of the host's first process: its mounts, its programs, its systemd.
fn host_command() -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", "1", "--mount", "--ipc", "--net", "--uts", "--"]);
    command
}

/// As in `contrib/systemd/strongroom-attach@.service`.
fn unit_properties() -> [String; 5] {
    [
        format!("TimeoutStartSec={START_SECONDS}"),
        "TimeoutStopSec=5min".to_owned(),
        "KillMode=mixed".to_owned(),
        "LimitMEMLOCK=infinity".to_owned(),
        "Before=remote-fs.target".to_owned(),
    ]
}

fn run(mut command: Command) -> Result<Output, Status> {
    let name = command.get_program().to_owned();
    command.stdin(Stdio::null()).output().map_err(|error| of_system(&format!("run {}", name.to_string_lossy()), error))
}

/// What a command said last, without the program's name in front: the reason, in words for people.
fn last_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[said.len().saturating_sub(WORDS_BYTES_MAX)..]);
    let reasons: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("strongroom: ")).collect();
    match reasons.is_empty() {
        true => text.trim().to_owned(),
        false => reasons.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_reason() {
        assert_eq!(last_words(b"INFO a\nstrongroom: no key\nits log is /run/a.log\n"), "no key");
        assert_eq!(last_words(b" odd \n"), "odd");
        assert_eq!(last_words(b"strongroom: a\nstrongroom: b\n"), "a; b");
        assert!(last_words(&[b'x'; WORDS_BYTES_MAX + 9]).len() == WORDS_BYTES_MAX);
    }

    /// What ends an attachment, and in which order, is the same for both. Only the start differs: kubelet asks again.
    #[test]
    fn units_are_as_the_package_has_them() {
        let unit = include_str!("../../../contrib/systemd/strongroom-attach@.service");
        for property in unit_properties() {
            let starts = property.starts_with("TimeoutStartSec=");
            assert!(starts != unit.lines().any(|line| line == property), "{property}");
        }
    }

    #[test]
    fn a_value_is_never_an_option() {
        let mut arguments = Arguments::of(["attach"]);
        arguments.option("to", "--force");
        arguments.flag("--shared");
        assert_eq!(arguments.0, ["attach", "--to=--force", "--shared"]);
    }

    #[test]
    fn the_list_of_attachments_is_read() {
        let text = r#"[{"url":"strongroom://h/v","pid":7,"directory":"/run/v","mount":null,"device":"/dev/loop3","state":"ended-with-losses",
            "disconnected":null,"losses":"12 blocks"}]"#;
        let list: Vec<AttachmentEntry> = serde_json::from_str(text).unwrap();
        assert_eq!(
            (list[0].state, list[0].device.as_deref()),
            (EntryState::EndedWithLosses, Some(Path::new("/dev/loop3")))
        );
    }
}
