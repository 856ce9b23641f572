//! The bytes of late charges and of reservations.

use std::num::NonZeroU16;

use super::{LateCharge, LateChargeMessage, TransferredHold};
use crate::key::Fingerprint;
use crate::registry::LimitHandle;
use crate::reservation::Reservation;
use crate::saved::bytes::{ByteReader, ByteWriter};
use crate::table::LimitId;

/// Stands for a limit whose counters were not transferred.
const NO_LIMIT: u32 = u32::MAX;

impl LateChargeMessage {
    /// Returns its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = ByteWriter(&mut bytes);
        self.key.words().into_iter().for_each(|word| out.u64(word));
        out.u32(self.limit.unwrap_or(NO_LIMIT));
        match &self.charge {
            LateCharge::Release(reservation) => {
                out.u16(0);
                reservation.write(&mut out);
            }
            LateCharge::Settle(reservation, due) => {
                out.u16(1);
                reservation.write(&mut out);
                out.u32(*due);
            }
            LateCharge::Charge(_, amount) => {
                out.u16(2);
                out.u64(amount.cast_unsigned());
            }
            LateCharge::Hold(reservation) => {
                out.u16(3);
                reservation.write(&mut out);
            }
        }
        bytes
    }

    /// Reads what [`Self::to_bytes`] returned; `None` if it is not valid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut input = ByteReader(bytes);
        let key = Fingerprint::from_words([input.u64()?, input.u64()?])?;
        let limit = input.u32().map(|number| (number != NO_LIMIT).then_some(number))?;
        let handle = LimitHandle::of_fingerprints(LimitId(u32::MAX));
        let charge = match input.u16()? {
            0 => LateCharge::Release(Reservation::read(&mut input, handle)?),
            1 => LateCharge::Settle(Reservation::read(&mut input, handle)?, input.u32()?),
            2 => LateCharge::Charge(handle, input.u64()?.cast_signed()),
            3 => LateCharge::Hold(Reservation::read(&mut input, handle)?),
            _ => return None,
        };
        input.is_empty().then_some(Self { key, limit, charge })
    }
}

impl TransferredHold {
    /// Returns the bytes of `holds`.
    pub fn all_to_bytes(holds: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = ByteWriter(&mut bytes);
        for hold in holds {
            hold.key.words().into_iter().for_each(|word| out.u64(word));
            out.u16(hold.units_per_request.get());
            out.u64(hold.units);
        }
        bytes
    }

    /// Reads what [`Self::all_to_bytes`] returned; `None` if it is not valid.
    pub fn all_from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let mut input = ByteReader(bytes);
        let mut holds = Vec::new();
        while !input.is_empty() {
            holds.push(Self {
                key: Fingerprint::from_words([input.u64()?, input.u64()?])?,
                units_per_request: NonZeroU16::new(input.u16()?)?,
                units: input.u64()?,
            });
        }
        Some(holds)
    }
}
