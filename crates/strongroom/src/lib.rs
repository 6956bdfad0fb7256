//! The command line of Strongroom: parses the arguments, calls the crate that does the work, and prints the result.
//!
//! `main.rs` is the product; [`run`] is all that it calls. `strongroom-lab` calls it too, for the targets and attachments that it
//! measures, and takes options, units and drawing from here, so that both programs understand and show the same.
//!
//! Deliberately absent: protocol, storage and sealing. Secrets come from files, never from the command line, and are
//! never printed.

mod access;
mod admin;
mod attachment_process;
mod attachments;
mod command_line;
mod commands;
mod config;
mod confirmation;
mod demo;
mod key_server;
mod keys;
mod logging;
mod memory;
mod metrics;
pub mod plot;
mod process;
mod progress;
mod root_args;
mod runtime_dir;
mod sd_notify;
mod signals;
mod stable_name;
mod state_file;
mod stats_file;
mod stopwatch;
mod table;
mod target_args;
pub mod units;
mod wrapping;
mod writer;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use strongroom_block::with_foreign_parts;

pub use access::AccessArgs;
pub use logging::{LoggingArgs, start as start_logging};
pub use signals::{StopSignal, StopSignals};
pub use stopwatch::{best_ns, seal_rate};
pub use table::Table;

/// Secure network block storage: the initiator seals each block, the target stores it as is.
#[derive(Parser)]
#[command(
    name = "strongroom",
    version,
    propagate_version = true,
    after_help = "Start here: `strongroom demo` shows the whole thing on this machine. Each command's --help has an example."
)]
struct Cli {
    #[command(flatten)]
    logging: logging::LoggingArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Identity(commands::identity::IdentityCommand),
    #[command(subcommand)]
    Key(commands::key::KeyCommand),
    #[command(subcommand)]
    Volume(commands::volume::VolumeCommand),
    #[command(subcommand)]
    Store(commands::store::StoreCommand),
    Serve(commands::serve::ServeArgs),
    #[command(name = "keyserver")]
    KeyServer(commands::keyserver::KeyServerCommand),
    Status(commands::status::StatusArgs),
    Console(commands::console::ConsoleArgs),
    Csi(Box<commands::csi::CsiArgs>),
    #[command(subcommand)]
    Session(commands::session::SessionCommand),
    Drain(commands::drain::DrainArgs),
    Reload(commands::drain::ReloadArgs),
    Invite(commands::invite::InviteCommand),
    Join(commands::join::JoinArgs),
    #[command(subcommand)]
    Peer(commands::peer::PeerCommand),
    Attach(Box<commands::attach::AttachCommand>),
    Detach(commands::detach::DetachArgs),
    Fence(Box<commands::fence::FenceArgs>),
    #[command(subcommand)]
    Nbd(commands::nbd::NbdCommand),
    #[command(subcommand)]
    VhostUser(commands::vhost_user::VhostUserCommand),
    Copy(commands::copy::CopyArgs),
    Discover(commands::discover::DiscoverArgs),
    Plan(Box<commands::plan::PlanArgs>),
    Doctor(commands::doctor::DoctorArgs),
    #[command(hide = true)]
    Generate(commands::generate::GenerateArgs),
    #[command(hide = true, disable_help_flag = true, disable_version_flag = true)]
    Bench(BenchArgs),
    Demo(demo::DemoArgs),
}

/// What `strongroom bench` was until there was a program of its own for it.
#[derive(Args)]
struct BenchArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _any: Vec<OsString>,
}

/// Where it is now.
const BENCH_MOVED: &str = "benchmarks and the link emulator are a program of their own, strongroom-lab, which is built from the sources: run `make lab`, then \
     target/release/strongroom-lab; its commands and options are those that `strongroom bench` had (`bench lab` is `strongroom-lab link`)";

impl Command {
    /// It stays, and its log is how people see what it does.
    fn serves(&self) -> bool {
        matches!(
            self,
            Command::Serve(_)
                | Command::KeyServer(_)
                | Command::Attach(_)
                | Command::Nbd(_)
                | Command::VhostUser(_)
                | Command::Csi(_)
        )
    }

    fn holds_keys(&self) -> bool {
        match self {
            Command::Identity(_)
            | Command::Key(_)
            | Command::Volume(_)
            | Command::Serve(_)
            | Command::KeyServer(_)
            | Command::Attach(_)
            | Command::Nbd(_)
            | Command::VhostUser(_)
            | Command::Fence(_)
            | Command::Copy(_)
            | Command::Console(_)
            | Command::Csi(_)
            | Command::Invite(_)
            | Command::Join(_)
            | Command::Discover(_)
            | Command::Plan(_) => true,
            Command::Store(_)
            | Command::Status(_)
            | Command::Session(_)
            | Command::Drain(_)
            | Command::Reload(_)
            | Command::Peer(_)
            | Command::Detach(_)
            | Command::Doctor(_)
            | Command::Generate(_)
            | Command::Bench(_)
            | Command::Demo(_) => false,
        }
    }
}

/// What a shell says of a command that SIGPIPE ended.
const ENDED_BY_SIGPIPE: i32 = 128 + 13;

/// Output that nobody reads any more (`strongroom status | head -1`, also with `2>&1`) ends a command without a word, as SIGPIPE ends others: it is
/// ignored here because of sockets, and a line that cannot be printed is a panic.
pub fn end_quietly_without_a_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if said.starts_with("failed printing to std") && said.contains("Broken pipe") {
            std::process::exit(ENDED_BY_SIGPIPE);
        }
        usual(panic);
    }));
}

/// Where a volume's keys are is said by one of these; a flag takes precedence over the other one's environment variable.
const KEY_FLAGS: [(&[&str], &str); 4] = [
    (&["--key-file", "--key"], "key_servers"),
    (&["--key-server"], "key_file"),
    (&["--new-key"], "key_servers"),
    (&["--new-key"], "key_file"),
];

fn parse(arguments: &[OsString]) -> Cli {
    let is_given = |flag: &str| {
        arguments.iter().skip(1).any(|argument| {
            let argument = argument.as_encoded_bytes();
            argument == flag.as_bytes()
                || (argument.starts_with(flag.as_bytes()) && argument.get(flag.len()) == Some(&b'='))
        })
    };
    let mut command = Cli::command();
    for (flags, other) in KEY_FLAGS {
        if flags.iter().any(|flag| is_given(flag)) {
            command = without_environment(command, other);
        }
    }
    Cli::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit())
}

/// The command and those under it, with an argument that no environment variable stands for.
fn without_environment(mut command: clap::Command, argument: &str) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |sub| without_environment(sub, argument));
    }
    if command.get_arguments().any(|known| known.get_id() == argument) {
        command = command.mut_arg(argument, |known| known.env(None::<&'static str>));
    }
    command
}

/// What any command makes is for its user alone, unless it says otherwise. Before there are threads and children.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Runs a command line, the program's name first, as the process `strongroom` would: what it prints, and what it ends with.
#[must_use]
pub fn run(arguments: &[OsString]) -> ExitCode {
    keep_files_private();
    end_quietly_without_a_reader();
    if commands::umount::is_meant(arguments) {
        return commands::umount::run(arguments).unwrap_or_else(|error| failed(&error));
    }
    let cli = parse(arguments);
    if let Err(error) = logging::start(&cli.logging, cli.command.serves()) {
        eprintln!("strongroom: {}", in_words(&error));
        return ExitCode::from(2);
    }
    if cli.command.holds_keys() {
        // Keys of blocks, volumes and channels do not go into a core dump. It also keeps other users' debuggers away.
        let refused = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        if let Err(error) = refused {
            tracing::warn!(%error, "cannot turn core dumps off; a crash may write keys to a file (ulimit -c 0 prevents it)");
        }
    }
    let result = match cli.command {
        Command::Store(command) => return commands::store::run(command).unwrap_or_else(|error| failed(&error)),
        Command::Identity(command) => commands::identity::run(command),
        Command::Key(command) => commands::key::run(command),
        Command::Volume(command) => commands::volume::run(command),
        Command::Serve(args) => commands::serve::run(args),
        Command::KeyServer(args) => commands::keyserver::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Console(args) => commands::console::run(&args),
        Command::Csi(args) => commands::csi::run(&args),
        Command::Session(command) => commands::session::run(command),
        Command::Drain(args) => commands::drain::run(args),
        Command::Reload(args) => commands::drain::reload(&args),
        Command::Invite(command) => commands::invite::run(command),
        Command::Join(args) => commands::join::run(&args),
        Command::Peer(command) => commands::peer::run(command),
        Command::Attach(command) => commands::attach::run(*command),
        Command::Detach(args) => return commands::detach::run(&args).unwrap_or_else(|error| failed(&error)),
        Command::Fence(args) => return commands::fence::run(&args).unwrap_or_else(|error| failed(&error)),
        Command::Nbd(command) => return commands::nbd::run(command).unwrap_or_else(|error| failed(&error)),
        Command::VhostUser(command) => {
            return commands::vhost_user::run(command).unwrap_or_else(|error| failed(&error));
        }
        Command::Copy(args) => commands::copy::run(args),
        Command::Discover(args) => commands::discover::run(args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Doctor(args) => return commands::doctor::run(&args).unwrap_or_else(|error| failed(&error)),
        Command::Generate(args) => commands::generate::run(&args, Cli::command()),
        Command::Bench(_) => {
            eprintln!("strongroom: {BENCH_MOVED}");
            return ExitCode::from(2);
        }
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("strongroom: {}", in_words(error));
    ExitCode::FAILURE
}

/// An error and its causes in one line; a cause that the line already tells is not told again.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !words.contains(&cause) {
            if !words.is_empty() {
                words.push_str(": ");
            }
            words.push_str(&cause);
        }
    }
    // Some of it may be what a peer or a server has said.
    words.split('\n').map(|line| with_foreign_parts(line).to_string()).collect::<Vec<_>>().join("\n")
}
