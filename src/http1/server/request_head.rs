//! The head of a request, decoded (RFC 9112 sections 2 to 6).
//!
//! What could be read in two ways is refused here or marked so that the connection ends with its answer; what else a
//! proxy does not pass on is for `headers::validate`.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, request};

use crate::http1::chunked::Chunked;
use crate::http1::content_length;
use crate::http1::decoder::Decoder;
use crate::http1::head::{Place, Places, lists, may_end, place, range};
use crate::http1::malformed::Malformed;

/// Room for so many fields needs no memory to be asked for.
const USUAL_FIELDS: usize = 100;
/// A target may take this much: what a `Uri` holds.
const LONGEST_TARGET: usize = u16::MAX as usize - 1;

/// How large a head may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the whole head.
    pub size: u32,
    /// Header fields.
    pub fields: u32,
}

/// The head of a request.
#[derive(Debug)]
pub struct Head {
    /// Method, target, version and fields.
    pub parts: request::Parts,
    /// Where the body ends.
    pub length: Decoder,
    /// The client sends the body when it is told to.
    pub expects: bool,
    /// What the response has to know.
    pub asked: Asked,
}

/// What an answer has to know of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The answer has no body, whatever its fields say.
    pub by_head: bool,
    /// The request is of HTTP/1.1, not 1.0.
    pub is_1_1: bool,
    /// The client keeps the connection after the answer.
    pub keeps: bool,
    /// The client takes trailers.
    pub trailers: bool,
}

/// A reader of heads.
#[derive(Debug)]
pub struct Reader {
    limits: Limits,
    /// So much of what has been read holds no whole head.
    looked: usize,
    /// An empty map, to be filled again.
    spare: Option<HeaderMap>,
    /// The head that was decoded last, until it is taken.
    head: Option<Head>,
}

/// What a head begins with.
struct Start {
    method: Method,
    target: [u32; 2],
    is_1_1: bool,
    /// Where the head ends.
    end: usize,
}

impl Reader {
    /// A reader of heads within these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, looked: 0, spare: None, head: None }
    }

    /// An empty map that is no longer needed.
    pub fn reuse(&mut self, spare: HeaderMap) {
        self.spare = Some(spare);
    }

    /// The head that has been decoded.
    pub fn take(&mut self) -> Option<Head> {
        self.head.take()
    }

    /// Takes a head off what has been read, to be [taken](Self::take): it is large, and is to be moved once. Whether it is
    /// whole.
    ///
    /// # Errors
    /// For what is not a head, or one over the limits.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<bool, Malformed> {
        let longest = self.limits.size as usize;
        if self.looked == 0 || may_end(read, self.looked) {
            let mut places = Places::new();
            if let Some(start) = parse(read, self.limits, &mut places)? {
                self.looked = 0;
                let bytes = read.split_to(start.end).freeze();
                if let Err(malformed) = self.complete(start, &bytes, &places) {
                    // For the log.
                    *read = BytesMut::from(&bytes[..]);
                    return Err(malformed);
                }
                return Ok(true);
            }
        }
        self.looked = read.len();
        if self.looked > longest { Err(Malformed::TooLong) } else { Ok(false) }
    }

    fn complete(&mut self, start: Start, bytes: &Bytes, places: &[Place]) -> Result<(), Malformed> {
        let Start { method, target, is_1_1, end: _ } = start;
        let uri = Uri::from_maybe_shared(bytes.slice(range(target))).map_err(|_| Malformed::Target)?;
        let mut headers = self.spare.take().unwrap_or_default();
        headers.reserve(places.len());
        let mut meaning = Meaning { is_1_1, keeps: is_1_1, ..Meaning::default() };
        for place in places {
            let (name, value) = place.field(bytes)?;
            if meaning.note(&name, &value, &mut headers)? {
                headers.append(name, value);
            }
        }
        let length = meaning.length()?;
        let expects = meaning.expects && is_1_1 && !length.is_over();
        let by_head = method == Method::HEAD;
        let asked = Asked { by_head, is_1_1, keeps: meaning.is_kept(), trailers: meaning.trailers };
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = method;
        parts.uri = uri;
        parts.version = if is_1_1 { Version::HTTP_11 } else { Version::HTTP_10 };
        // The map that was there has no memory to be given back.
        std::mem::forget(std::mem::replace(&mut parts.headers, headers));
        self.head = Some(Head { parts, length, expects, asked });
        Ok(())
    }
}

/// What the fields say of the body's end and of the connection's.
#[derive(Debug, Default)]
struct Meaning {
    is_1_1: bool,
    /// Whether there is a coding, and whether its last step is chunks.
    coded: bool,
    chunked: bool,
    /// Whether there is a length, and which, unless a coding takes its place.
    measured: bool,
    octets: Option<u64>,
    keeps: bool,
    closes: bool,
    expects: bool,
    trailers: bool,
}

impl Meaning {
    /// Whether a field is kept. One that a coding overrules is not, nor one that says the same again or in other digits.
    fn note(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
        headers: &mut HeaderMap,
    ) -> Result<bool, Malformed> {
        match *name {
            TRANSFER_ENCODING => {
                if !self.is_1_1 {
                    return Err(Malformed::Coding);
                }
                self.coded = true;
                self.chunked = ends_in_chunks(value);
                if self.octets.take().is_some() {
                    headers.remove(CONTENT_LENGTH);
                }
            }
            CONTENT_LENGTH => {
                self.measured = true;
                if self.coded {
                    return Ok(false);
                }
                let octets = content_length::parse(value.as_bytes()).ok_or(Malformed::Length)?;
                match self.octets.replace(octets) {
                    Some(before) if before != octets => return Err(Malformed::Length),
                    Some(_) => return Ok(false),
                    None if content_length::is_normal(value.as_bytes()) => {}
                    None => {
                        headers.append(CONTENT_LENGTH, HeaderValue::from(octets));
                        return Ok(false);
                    }
                }
            }
            CONNECTION => {
                self.closes |= lists(value.as_bytes(), "close");
                self.keeps |= lists(value.as_bytes(), "keep-alive");
            }
            EXPECT => self.expects = value.as_bytes().eq_ignore_ascii_case(b"100-continue"),
            TE => self.trailers |= lists(value.as_bytes(), "trailers"),
            _ => {}
        }
        Ok(true)
    }

    fn length(&self) -> Result<Decoder, Malformed> {
        match (self.coded, self.octets) {
            (true, _) if !self.chunked => Err(Malformed::Coding),
            (true, _) => Ok(Decoder::Chunked(Chunked::default())),
            (false, octets) => Ok(Decoder::Length(octets.unwrap_or(0))),
        }
    }

    /// A coding and a length at once are an attempt to be read in two ways: the coding is what is read, but then no more
    /// (RFC 9112 section 6.1).
    fn is_kept(&self) -> bool {
        self.keeps && !self.closes && !(self.coded && self.measured)
    }
}

fn ends_in_chunks(value: &HeaderValue) -> bool {
    // What is no text is no list either.
    let last = value.to_str().unwrap_or_default().rsplit(',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case("chunked")
}

/// What a whole head begins with, and in `places` where its fields stand; `None` if it is not whole.
fn parse(read: &[u8], limits: Limits, places: &mut Places) -> Result<Option<Start>, Malformed> {
    let most = limits.fields as usize;
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    let mut more;
    let room = match usual.get_mut(..most) {
        Some(room) => room,
        None => {
            more = vec![MaybeUninit::uninit(); most];
            &mut more[..]
        }
    };
    let mut request = httparse::Request::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut request, read, room);
    let parsed = parsed.map_err(|error| match error {
        httparse::Error::TooManyHeaders => Malformed::TooLong,
        error => Malformed::Head(error),
    });
    let httparse::Status::Complete(end) = parsed? else { return Ok(None) };
    if end > limits.size as usize {
        return Err(Malformed::TooLong);
    }
    let target = request.path.unwrap_or_default();
    if target.len() > LONGEST_TARGET {
        return Err(Malformed::LongTarget);
    }
    let method = Method::from_bytes(request.method.unwrap_or_default().as_bytes());
    let method = method.map_err(|_| Malformed::Head(httparse::Error::Token))?;
    places.extend(request.headers.iter().map(|field| Place::of(read, field)));
    let target = place(read, target.as_bytes());
    Ok(Some(Start { method, target, is_1_1: request.version == Some(1), end }))
}

#[cfg(test)]
mod tests;
