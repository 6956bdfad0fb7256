//! The handshake: fixed newstyle negotiation of one client, until requests may follow.
//!
//! The caller passes on what the client sends and sends what [`Negotiation::take_output`] has; after [`Progress::StartTls`] it makes the TLS
//! session and calls [`Negotiation::tls_established`]. Absent: a time limit.

mod option_data;

use crate::export::{Export, ReplyFormat, Transmission};
use crate::wire::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, FieldReader, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    handshake_flag, info, option, option_reply,
};
use option_data::{ContextQuery, ExportQuery};

/// Upper bound on the data of one option, in bytes: names have up to 4096.
const OPTION_BYTES_MAX: u32 = 32 << 10;
const OPTION_HEADER_BYTES: usize = 16;
/// What the caller must have room for, in bytes: less than one whole option, and the negotiation waits for more.
pub const INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize;
/// Options of one client. Tools that ask for everything send about twenty.
const OPTIONS_MAX: u32 = 256;
/// After the answer to NBD_OPT_EXPORT_NAME, unless the client wants none.
const RESERVED_ZEROES: usize = 124;

/// Whether the client has to begin TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// There is none (the specification's NOTLS).
    Off,
    /// Nothing else is answered before it (FORCEDTLS).
    Required,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Send the output, and pass on what comes.
    Incomplete,
    /// Send the output, then make a TLS session.
    StartTls,
    /// Send the output; what follows are requests.
    Done(Transmission),
    /// Send the output and close: the client has ended it.
    Aborted,
}

/// The client misbehaved, or wants what there is not and cannot be told so: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Flags that were not offered.
    #[error("the client sets unknown handshake flags ({0:#x})")]
    ClientFlags(u32),
    /// Not an option.
    #[error("the client sends {0:#x} where an option begins")]
    OptionMagic(u64),
    /// An option of a length that no client needs.
    #[error("the client announces an option of {0} bytes")]
    OptionLength(u32),
    /// A client that never comes to an end.
    #[error("the client sends more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// NBD_OPT_EXPORT_NAME has no error reply.
    #[error("the client asks for an export of another name")]
    UnknownExport,
    /// NBD_OPT_EXPORT_NAME after extended headers were agreed on, which that option cannot enter.
    #[error("the client sends NBD_OPT_EXPORT_NAME after it has asked for extended headers")]
    ExportNameWithExtendedHeaders,
    /// A client that cannot begin TLS, or does not.
    #[error("the client does not begin TLS, which is required here")]
    TlsRequired,
    /// What came before TLS must not count as if it had come through it.
    #[error("the client sends more behind NBD_OPT_STARTTLS, before TLS was begun")]
    DataBehindStartTls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    Plain,
    TlsRequired,
    TlsEstablished,
}

/// The handshake with one client.
#[derive(Debug)]
pub struct Negotiation {
    export: Export,
    security: Security,
    /// The client's flags have come.
    is_begun: bool,
    wants_zeroes: bool,
    format: ReplyFormat,
    has_allocation: bool,
    options: u32,
    output: Vec<u8>,
}

impl Negotiation {
    /// Begins with the server's greeting.
    pub fn new(export: Export, tls: TlsMode) -> Negotiation {
        let mut output = Vec::new();
        output.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        output.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        output.extend_from_slice(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        let security = match tls {
            TlsMode::Off => Security::Plain,
            TlsMode::Required => Security::TlsRequired,
        };
        Negotiation {
            export,
            security,
            is_begun: false,
            wants_zeroes: true,
            format: ReplyFormat::Simple,
            has_allocation: false,
            options: 0,
            output,
        }
    }

    /// What is to be sent.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The TLS session is there; what comes from now on has come through it.
    pub fn tls_established(&mut self) {
        self.security = Security::TlsEstablished;
    }

    /// Takes bytes of the client; says how many it has used up, and what is to be done. The caller passes the rest on again, with what has
    /// come meanwhile.
    ///
    /// # Errors
    /// [`NegotiationError`]; the connection is to be closed.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(usize, Progress), NegotiationError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (taken, progress) = if self.is_begun { self.option(rest)? } else { self.client_flags(rest)? };
            used += taken;
            if taken == 0 || progress != Progress::Incomplete {
                return Ok((used, progress));
            }
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Result<(usize, Progress), NegotiationError> {
        let Some(flags) = FieldReader::new(input).u32() else { return Ok((0, Progress::Incomplete)) };
        let (fixed, no_zeroes) = (u32::from(handshake_flag::FIXED_NEWSTYLE), u32::from(handshake_flag::NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(NegotiationError::ClientFlags(flags));
        }
        if flags & fixed == 0 && self.security == Security::TlsRequired {
            return Err(NegotiationError::TlsRequired);
        }
        self.is_begun = true;
        self.wants_zeroes = flags & no_zeroes == 0;
        Ok((size_of::<u32>(), Progress::Incomplete))
    }

    fn option(&mut self, input: &[u8]) -> Result<(usize, Progress), NegotiationError> {
        let mut header = FieldReader::new(input);
        let (Some(magic), Some(option), Some(len)) = (header.u64(), header.u32(), header.u32()) else {
            return Ok((0, Progress::Incomplete));
        };
        if magic != OPTION_MAGIC {
            return Err(NegotiationError::OptionMagic(magic));
        }
        if len > OPTION_BYTES_MAX {
            return Err(NegotiationError::OptionLength(len));
        }
        let whole = OPTION_HEADER_BYTES + len as usize;
        let Some(data) = input.get(OPTION_HEADER_BYTES..whole) else { return Ok((0, Progress::Incomplete)) };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(NegotiationError::TooManyOptions);
        }
        let progress = self.answer(option, data)?;
        if progress == Progress::StartTls && input.len() > whole {
            return Err(NegotiationError::DataBehindStartTls);
        }
        Ok((whole, progress))
    }

    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Progress, NegotiationError> {
        if self.security == Security::TlsRequired && ![option::STARTTLS, option::ABORT].contains(&option) {
            if option == option::EXPORT_NAME {
                return Err(NegotiationError::TlsRequired);
            }
            self.refuse(option, option_reply::ERR_TLS_REQD, "TLS is required: begin it first");
            return Ok(Progress::Incomplete);
        }
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.acknowledge(option);
                return Ok(Progress::Aborted);
            }
            option::INFO | option::GO => return Ok(self.export_query(option, data)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.context_query(option, data),
            option::STARTTLS | option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS
                if !data.is_empty() =>
            {
                self.refuse(option, option_reply::ERR_INVALID, "this option has no data");
            }
            option::STARTTLS => return Ok(self.start_tls()),
            option::LIST => {
                let name = self.export.name.clone().into_bytes();
                self.reply(option, option_reply::SERVER, &[&(name.len() as u32).to_be_bytes(), &name]);
                self.acknowledge(option);
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.choose_format(option),
            _ => self.refuse(option, option_reply::ERR_UNSUP, "this option is not known here"),
        }
        Ok(Progress::Incomplete)
    }

    fn start_tls(&mut self) -> Progress {
        match self.security {
            Security::Plain => {
                self.refuse(option::STARTTLS, option_reply::ERR_POLICY, "this server has no certificates for TLS");
                Progress::Incomplete
            }
            Security::TlsEstablished => {
                self.refuse(option::STARTTLS, option_reply::ERR_INVALID, "TLS has begun already");
                Progress::Incomplete
            }
            Security::TlsRequired => {
                self.acknowledge(option::STARTTLS);
                Progress::StartTls
            }
        }
    }

    fn choose_format(&mut self, option: u32) {
        let wanted = if option == option::STRUCTURED_REPLY { ReplyFormat::Structured } else { ReplyFormat::Extended };
        if self.format == wanted {
            self.refuse(option, option_reply::ERR_INVALID, "this was agreed on already");
        } else if self.format == ReplyFormat::Extended {
            self.refuse(option, option_reply::ERR_EXT_HEADER_REQD, "extended headers were agreed on already");
        } else {
            self.format = wanted;
            self.acknowledge(option);
        }
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Progress, NegotiationError> {
        if !self.export.is_called(name) {
            return Err(NegotiationError::UnknownExport);
        }
        if self.format == ReplyFormat::Extended {
            return Err(NegotiationError::ExportNameWithExtendedHeaders);
        }
        self.output.extend_from_slice(&self.export.size_bytes.to_be_bytes());
        self.output.extend_from_slice(&self.export.flags(self.format).to_be_bytes());
        if self.wants_zeroes {
            self.output.extend_from_slice(&[0; RESERVED_ZEROES]);
        }
        Ok(self.done())
    }

    fn export_query(&mut self, option: u32, data: &[u8]) -> Progress {
        let Some(query) = ExportQuery::parse(data) else {
            self.refuse(option, option_reply::ERR_INVALID, "the option's data are malformed");
            return Progress::Incomplete;
        };
        if !self.export.is_called(query.name) {
            self.refuse(option, option_reply::ERR_UNKNOWN, "there is no export of this name");
            return Progress::Incomplete;
        }
        let (size, flags) = (self.export.size_bytes.to_be_bytes(), self.export.flags(self.format).to_be_bytes());
        self.reply(option, option_reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        if query.wants(info::NAME) {
            let name = self.export.name.clone().into_bytes();
            self.reply(option, option_reply::INFO, &[&info::NAME.to_be_bytes(), &name]);
        }
        if query.wants(info::BLOCK_SIZE) {
            let [minimum, preferred, maximum] = self.export.size_constraints().map(u32::to_be_bytes);
            let kind = info::BLOCK_SIZE.to_be_bytes();
            self.reply(option, option_reply::INFO, &[&kind, &minimum, &preferred, &maximum]);
        }
        self.acknowledge(option);
        if option == option::GO { self.done() } else { Progress::Incomplete }
    }

    fn context_query(&mut self, option: u32, data: &[u8]) {
        let selects = option == option::SET_META_CONTEXT;
        if selects {
            // What was selected before is gone, also if this fails.
            self.has_allocation = false;
        }
        if self.format == ReplyFormat::Simple {
            return self.refuse(option, option_reply::ERR_INVALID, "agree on structured replies first");
        }
        let Some(query) = ContextQuery::parse(data) else {
            return self.refuse(option, option_reply::ERR_INVALID, "the option's data are malformed");
        };
        if !self.export.is_called(query.name) {
            return self.refuse(option, option_reply::ERR_UNKNOWN, "there is no export of this name");
        }
        let is_meant = if selects { query.selects_allocation() } else { query.lists_allocation() };
        if is_meant {
            self.has_allocation |= selects;
            // In a list the number means nothing.
            let id = if selects { ALLOCATION_CONTEXT_ID } else { 0 };
            self.reply(option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()]);
        }
        self.acknowledge(option);
    }

    fn done(&self) -> Progress {
        Progress::Done(Transmission {
            format: self.format,
            has_allocation: self.has_allocation,
            read_only: self.export.read_only,
            fast_zero: self.export.fast_zero && !self.export.read_only,
        })
    }

    fn acknowledge(&mut self, option: u32) {
        self.reply(option, option_reply::ACK, &[]);
    }

    fn refuse(&mut self, option: u32, kind: u32, text: &str) {
        self.reply(option, kind, &[text.as_bytes()]);
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.output.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        for field in [option, kind, len as u32] {
            self.output.extend_from_slice(&field.to_be_bytes());
        }
        parts.iter().for_each(|part| self.output.extend_from_slice(part));
    }
}
