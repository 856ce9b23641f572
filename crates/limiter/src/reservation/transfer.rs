//! A reservation on its way to the process that replaces this one.

use std::num::NonZeroU16;

use super::{ChargeTiming, DebtLimit, Reservation};
use crate::key::KeyHash;
use crate::registry::LimitHandle;
use crate::saved::bytes::{ByteReader, ByteWriter};
use crate::table::LimitId;
use crate::timestamp::Timestamp;

impl Reservation {
    /// Returns the id of its limit.
    pub(crate) const fn limit(&self) -> LimitId {
        self.handle.id
    }

    /// Returns the units that are reserved and not charged, with the units per request that they are in.
    pub(crate) fn held_units(&self) -> Option<(NonZeroU16, u32)> {
        (self.charge_timing != ChargeTiming::OnArrival).then_some((self.units_per_request, self.units))
    }

    /// Returns it for the counter of another process.
    pub(crate) const fn moved_to(self, handle: LimitHandle, key: KeyHash) -> Self {
        Self { handle, key, ..self }
    }

    /// Appends it to `out`, without its counter and the limit that its request has stated.
    pub(crate) fn write(&self, out: &mut ByteWriter<'_>) {
        out.u16(match self.charge_timing {
            ChargeTiming::OnArrival => 0,
            ChargeTiming::OnResponse => 1,
            ChargeTiming::WhileInFlight => 2,
        });
        out.u16(match self.debt_limit {
            DebtLimit::OneBurst => 0,
            DebtLimit::Unlimited => 1,
        });
        out.u32(self.units);
        out.u32(self.charged);
        out.u16(self.units_per_request.get());
        out.u64(self.reserved_at.as_nanos());
    }

    /// Reads what [`Self::write`] wrote; `None` if it is not valid.
    pub(crate) fn read(input: &mut ByteReader<'_>, handle: LimitHandle) -> Option<Self> {
        let charge_timing = match input.u16()? {
            0 => ChargeTiming::OnArrival,
            1 => ChargeTiming::OnResponse,
            2 => ChargeTiming::WhileInFlight,
            _ => return None,
        };
        let debt_limit = match input.u16()? {
            0 => DebtLimit::OneBurst,
            1 => DebtLimit::Unlimited,
            _ => return None,
        };
        Some(Self {
            handle,
            key: KeyHash::default(),
            charge_timing,
            units: input.u32()?,
            charged: input.u32()?,
            units_per_request: NonZeroU16::new(input.u16()?)?,
            debt_limit,
            reserved_at: Timestamp::from_nanos(input.u64()?),
            request_limit: None,
        })
    }
}
