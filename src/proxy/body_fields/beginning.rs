//! The fields in the beginning of a body.

use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::fields::Records;
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;
use weir_policy::identify::body::BodySettings;

/// The beginning of a body, of which at most [`BodySettings::max`] bytes are read.
pub(super) struct Beginning<'s> {
    reader: BodyReader,
    coding: Option<Coding>,
    url: Option<UrlParameters>,
    settings: &'s BodySettings,
    /// Bytes that have been read.
    size: usize,
}

impl<'s> Beginning<'s> {
    /// Creates the beginning of a body of which nothing has been read. `url`: the parameters on which fields depend.
    pub(super) const fn new(
        reader: BodyReader,
        coding: Option<Coding>,
        url: Option<UrlParameters>,
        settings: &'s BodySettings,
    ) -> Self {
        Self { reader, coding, url, settings, size: 0 }
    }

    /// Returns the fields if they are known by what has been read.
    pub(super) fn known(&mut self) -> Result<Option<Records>, Unreadable> {
        self.reader.known(&self.settings.fields, self.url.as_ref())
    }

    /// Returns what reads on behind it.
    pub(super) fn into_reader(self) -> BodyReader {
        self.reader
    }

    /// Returns the bytes that are kept of values.
    pub(super) fn kept_size(&self) -> usize {
        self.reader.kept_size()
    }

    /// Reads the next piece. Returns the fields once all of them are known; then, the whole piece has been read.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<Option<Records>, Unreadable> {
        let fields = &self.settings.fields;
        let (within, beyond) = piece.split_at(piece.len().min(self.settings.max.saturating_sub(self.size)));
        self.size += piece.len();
        // A compressed body is read whole, because its content may be much longer than what has arrived.
        if self.coding.is_none() {
            self.reader.read(fields, within)?;
            if let Some(records) = self.known()? {
                return self.reader.read(fields, beyond).map(|()| Some(records));
            }
        }
        if beyond.is_empty() { Ok(None) } else { Err(Unreadable::TooLong) }
    }

    /// Returns the fields and the size of the content, of a body that consists of `data`.
    pub(super) fn end(mut self, data: &[u8]) -> Result<(Records, Option<u64>), Unreadable> {
        let fields = &self.settings.fields;
        if let Some(coding) = self.coding {
            self.size = coding.decode(data, self.settings.max, |piece| self.reader.read(fields, piece))?;
        }
        let size = self.size as u64;
        self.reader.finish(fields, self.url.as_ref()).map(|records| (records, Some(size)))
    }

    /// As [`Self::end`], of a body whose fields were known before its end.
    pub(super) fn end_known(self, records: Records) -> Result<(Records, Option<u64>), Unreadable> {
        self.reader.finish(&self.settings.fields, None)?;
        Ok((records, Some(self.size as u64)))
    }
}
