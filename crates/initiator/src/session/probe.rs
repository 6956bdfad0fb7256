//! The questions after a login: what is this unit? Asked again in every session; answers are checked before they are believed.

use std::time::Duration;

use strongroom_handshake::PublicKey;
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::inquiry::{self, BlockLimits, StandardInquiry};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, Completed};
use strongroom_scsi::{cdb, vendor};

use crate::pipeline::outcome::{Outcome, Retries, judge};
use crate::pipeline::unit::{SealedUnit, UnitDescription};
use crate::{AttachError, SealedClaims};

/// Bytes asked of each page: more than any that we know.
const PAGE_BYTES: u16 = 1024;
/// Upper bound on data taken for one question, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Inquiry,
    Pages,
    UnitPage,
    Capacity,
    Limits,
}

/// The questions, and what is known so far.
#[derive(Debug)]
pub(crate) struct Probe {
    lun: u16,
    question: Question,
    answer: Vec<u8>,
    retries: Retries,
    pages: Vec<u8>,
    unit: UnitDescription,
}

/// What to do after an answer.
#[derive(Debug)]
pub(crate) enum ProbeStep {
    /// Send [`Probe::command`], after a pause.
    Ask(Duration),
    Done(Box<UnitDescription>),
    Failed(AttachError),
}

impl Probe {
    pub(crate) fn new(target_name: String, lun: u16, target_key: Option<PublicKey>) -> Probe {
        let unit = UnitDescription {
            target_name,
            lun,
            vendor: String::new(),
            product: String::new(),
            revision: String::new(),
            geometry: strongroom_block::Geometry { block_size: strongroom_block::BlockSize::DEFAULT, blocks: 0 },
            sealed: None,
            target_key,
            transfer_blocks_max: None,
            compare_and_write: false,
            unmap_blocks_max: None,
            other_views: 0,
            incarnation: None,
            image: None,
            has_leases: false,
        };
        Probe {
            lun,
            question: Question::Inquiry,
            answer: Vec::new(),
            retries: Retries::default(),
            pages: Vec::new(),
            unit,
        }
    }

    /// What is known so far.
    #[cfg(test)]
    pub(crate) fn into_unit(self) -> UnitDescription {
        self.unit
    }

    /// The command of the question at hand.
    pub(crate) fn command(&mut self) -> ScsiCommand {
        self.answer.clear();
        let page = |code| (cdb::inquiry_vpd(code, PAGE_BYTES), u32::from(PAGE_BYTES));
        let (cdb, bytes) = match self.question {
            Question::Inquiry => (cdb::inquiry(PAGE_BYTES), u32::from(PAGE_BYTES)),
            Question::Pages => page(inquiry::PAGE_SUPPORTED),
            Question::UnitPage => page(vendor::UNIT_PAGE),
            Question::Capacity => (cdb::read_capacity_16(), ReadCapacity16::BYTES as u32),
            Question::Limits => page(inquiry::PAGE_BLOCK_LIMITS),
        };
        ScsiCommand::read(Lun::single_level(self.lun), cdb, bytes)
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        let room = ANSWER_BYTES_MAX - self.answer.len();
        self.answer.extend_from_slice(&data[..data.len().min(room)]);
    }

    pub(crate) fn completed(&mut self, completed: &Completed) -> ProbeStep {
        match judge(completed, None, &mut self.retries) {
            Outcome::Done => {}
            Outcome::Retry(after) => return ProbeStep::Ask(after),
            // Optional for the target; what follows from their absence was assumed already.
            _ if matches!(self.question, Question::Pages | Question::Limits) => self.answer.clear(),
            Outcome::Fail(error) => return ProbeStep::Failed(AttachError::Unsupported(error.message)),
            verdict => {
                let what = format!("{:?} was answered with {verdict:?}; is this a disk?", self.question);
                return ProbeStep::Failed(AttachError::Unsupported(what));
            }
        }
        self.retries = Retries::default();
        match self.understand() {
            Ok(Some(next)) => {
                self.question = next;
                ProbeStep::Ask(Duration::ZERO)
            }
            Ok(None) => ProbeStep::Done(Box::new(self.unit.clone())),
            Err(error) => ProbeStep::Failed(error),
        }
    }

    /// Takes the answer in; says what to ask next.
    fn understand(&mut self) -> Result<Option<Question>, AttachError> {
        match self.question {
            Question::Inquiry => self.understand_inquiry().map(Some),
            Question::Pages => {
                self.pages = inquiry::parse_vpd_pages(&self.answer).unwrap_or_default();
                // Only a Strongroom gives 0xC0 the meaning that we know.
                let ours = self.unit.vendor.as_bytes() == inquiry::VENDOR.trim_ascii();
                let asks = self.pages.contains(&vendor::UNIT_PAGE) && ours;
                Ok(Some(if asks { Question::UnitPage } else { Question::Capacity }))
            }
            Question::UnitPage => self.understand_unit_page().map(Some),
            Question::Capacity => self.understand_capacity(),
            Question::Limits => {
                if let Some(limits) = BlockLimits::parse(&self.answer) {
                    self.unit.transfer_blocks_max = Some(limits.transfer_blocks_max).filter(|&blocks| blocks > 0);
                    self.unit.compare_and_write = limits.compare_and_write_blocks > 0;
                    let unmap = limits.unmap_blocks_max;
                    self.unit.unmap_blocks_max = self.unit.unmap_blocks_max.filter(|_| unmap > 0).map(|_| unmap);
                }
                Ok(None)
            }
        }
    }

    fn understand_inquiry(&mut self) -> Result<Question, AttachError> {
        let inquiry = StandardInquiry::parse(&self.answer).ok_or_else(|| unsupported("INQUIRY is cut short"))?;
        if !inquiry.is_block_device() {
            return Err(AttachError::NoUnit(format!(
                "there is no disk at {} logical unit {}; check the URL, and 'volume list' at the target",
                self.unit.target_name, self.lun
            )));
        }
        self.unit.vendor = inquiry.vendor;
        self.unit.product = inquiry.product;
        self.unit.revision = inquiry.revision;
        Ok(Question::Pages)
    }

    fn understand_unit_page(&mut self) -> Result<Question, AttachError> {
        let page = vendor::UnitPage::parse(&self.answer)
            .ok_or_else(|| unsupported("it describes itself in a way that this build does not know; update"))?;
        self.unit.incarnation = Some(page.incarnation);
        self.unit.image = page.image;
        self.unit.other_views = page.other_views;
        self.unit.has_leases = page.has_leases;
        self.unit.sealed = page.sealing.map(|sealing| SealedUnit {
            claims: SealedClaims {
                volume_id: page.volume,
                domain: sealing.domain,
                block_size: page.block_size,
                custody: sealing.custody,
                suite: sealing.suite,
                epoch: sealing.epoch,
            },
            mode: sealing.mode,
            record_bytes: sealing.record_bytes as usize,
            allows_previous: sealing.allows_previous,
            conditional_holes: sealing.conditional_holes,
            heeds_keys_destroyed: sealing.heeds_keys_destroyed,
        });
        Ok(Question::Capacity)
    }

    fn understand_capacity(&mut self) -> Result<Option<Question>, AttachError> {
        let capacity = ReadCapacity16::parse(&self.answer).ok_or_else(|| unsupported("READ CAPACITY is cut short"))?;
        self.unit.geometry =
            capacity.geometry().ok_or_else(|| unsupported("its block size is not a power of two from 512 to 65536"))?;
        if let Some(sealed) = &self.unit.sealed
            && sealed.claims.block_size != self.unit.geometry.block_size
        {
            return Err(unsupported("it contradicts itself about its block size"));
        }
        // A discarded block must read as zeros: where it need not, zeros are written instead.
        let unmap = capacity.provisioned && capacity.reads_zeros;
        self.unit.unmap_blocks_max = unmap.then_some(u32::MAX);
        Ok(self.pages.contains(&inquiry::PAGE_BLOCK_LIMITS).then_some(Question::Limits))
    }
}

fn unsupported(what: &str) -> AttachError {
    AttachError::Unsupported(what.to_owned())
}
