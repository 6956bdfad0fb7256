//! LOG SENSE: the list of pages, logical block provisioning, and general statistics (SPC-4 §7.3, SBC-3 §6.4).

use crate::sense::Sense;

/// Supported log pages.
const PAGE_SUPPORTED: u8 = 0x00;
/// Logical block provisioning: thin units only.
const PAGE_PROVISIONING: u8 = 0x0c;
/// General statistics and performance.
const PAGE_STATISTICS: u8 = 0x19;
const ALL_SUBPAGES: u8 = 0xff;

/// What is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// READ commands done.
    pub reads: u64,
    /// WRITE commands done.
    pub writes: u64,
    /// Blocks received from initiators.
    pub blocks_received: u64,
    /// Blocks sent to initiators.
    pub blocks_sent: u64,
    /// Space that writes can still take, in units of 2^[`crate::inquiry::threshold_exponent`] blocks. `None`: not thin.
    pub available: Option<u32>,
    /// Space taken, in the same units.
    pub used: u32,
}

impl Counters {
    /// The page that LOG SENSE asks for.
    ///
    /// # Errors
    /// The sense for a page or a kind of value that is not there.
    pub fn page(&self, page_control: u8, page: u8, subpage: u8, parameter_pointer: u16) -> Result<Vec<u8>, Sense> {
        // Cumulative values (01b) are all there is; thresholds and defaults are not kept.
        if page_control != 1 && page_control != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(7)));
        }
        if parameter_pointer != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(5, None));
        }
        let pages: &[u8] = match self.available {
            Some(_) => &[PAGE_SUPPORTED, PAGE_PROVISIONING, PAGE_STATISTICS],
            None => &[PAGE_SUPPORTED, PAGE_STATISTICS],
        };
        let body = match (page, subpage) {
            (PAGE_SUPPORTED, 0) => pages.to_vec(),
            (PAGE_SUPPORTED, ALL_SUBPAGES) => {
                let whole = [[PAGE_SUPPORTED, 0], [PAGE_SUPPORTED, ALL_SUBPAGES]];
                whole.into_iter().chain(pages[1..].iter().map(|&page| [page, 0])).flatten().collect()
            }
            (PAGE_PROVISIONING, 0) => self.provisioning().ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(5)))?,
            (PAGE_STATISTICS, 0) => self.statistics(),
            (_, 0) => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(5))),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(3, None)),
        };
        // SPF is set in the answer to a request with a subpage.
        let code = page | if subpage == 0 { 0 } else { 0x40 };
        let [high, low] = (body.len() as u16).to_be_bytes();
        Ok([[code, subpage, high, low].as_slice(), &body].concat())
    }

    /// Available (0001h) and used (0002h) LBA mapping resources, of this unit alone (SCOPE 01b).
    fn provisioning(&self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        for (code, count) in [(1u16, self.available?), (2, self.used)] {
            body.extend_from_slice(&code.to_be_bytes());
            // A binary list parameter, eight bytes.
            body.extend_from_slice(&[0x03, 8]);
            body.extend_from_slice(&count.to_be_bytes());
            body.extend_from_slice(&[0x01, 0, 0, 0]);
        }
        Some(body)
    }

    /// Parameter 0001h; the intervals are not measured.
    fn statistics(&self) -> Vec<u8> {
        let mut body = vec![0, 1, 0x03, 64];
        let counts = [self.reads, self.writes, self.blocks_received, self.blocks_sent, 0, 0, 0, 0];
        counts.iter().for_each(|count| body.extend_from_slice(&count.to_be_bytes()));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_pages() {
        let counters =
            Counters { reads: 1, writes: 2, blocks_received: 3, blocks_sent: 4, available: Some(5), used: 6 };
        assert_eq!(counters.page(1, 0, 0, 0).unwrap(), [0, 0, 0, 3, 0, 0x0c, 0x19]);
        assert_eq!(counters.page(1, 0, 0xff, 0).unwrap(), [0x40, 0xff, 0, 8, 0, 0, 0, 0xff, 0x0c, 0, 0x19, 0]);
        let provisioning = counters.page(1, 0x0c, 0, 0).unwrap();
        assert_eq!(provisioning[..16], [0x0c, 0, 0, 24, 0, 1, 3, 8, 0, 0, 0, 5, 1, 0, 0, 0]);
        assert_eq!(provisioning[16..24], [0, 2, 3, 8, 0, 0, 0, 6]);
        let statistics = counters.page(1, 0x19, 0, 0).unwrap();
        assert_eq!((statistics.len(), statistics[3], statistics[15], statistics[39]), (72, 68, 1, 4));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let thick = Counters::default();
        assert_eq!(thick.page(1, 0, 0, 0).unwrap(), [0, 0, 0, 2, 0, 0x19]);
        for (control, page, subpage, pointer) in
            [(1, 0x0c, 0, 0), (1, 0x0d, 0, 0), (1, 0x19, 1, 0), (2, 0, 0, 0), (1, 0, 0, 1)]
        {
            let error = thick.page(control, page, subpage, pointer).unwrap_err();
            assert!(error.is(&Sense::INVALID_FIELD_IN_CDB));
        }
    }
}
