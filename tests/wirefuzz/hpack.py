"""Header compression of HTTP/2 (RFC 7541): a decoder, and encoders with which a test chooses the representation."""

STATIC = [
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"), (b":path", b"/index.html"),
    (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"), (b":status", b"204"), (b":status", b"206"),
    (b":status", b"304"), (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""), (b"authorization", b""), (b"cache-control", b""),
    (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""), (b"date", b""), (b"etag", b""),
    (b"expect", b""), (b"expires", b""), (b"from", b""), (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""),
    (b"if-none-match", b""), (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""),
    (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""),
    (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""), (b"via", b""),
    (b"www-authenticate", b""),
]
# Length in bits of each symbol's code (appendix B), with `a` for 5. The code is canonical, so the lengths define it.
LENGTHS = (
    "isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhfibccccccccccccccccccccccdcdioijbkabababbbaccbbbabcbaabccccckgjix"
    "prpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrsvvporsruvvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwvz"
)
# Default size of the dynamic table.
DEFAULT_TABLE = 4096


class Undecodable(Exception):
    """An invalid header block (a connection error of type COMPRESSION_ERROR)."""


def codes():
    """Returns the symbols by length and code."""
    table, code, before = {}, 0, 5
    for length, symbol in sorted((ord(letter) - ord("a") + 5, symbol) for symbol, letter in enumerate(LENGTHS)):
        code <<= length - before
        table[length, code] = symbol
        code, before = code + 1, length
    return table


CODES = codes()


def unhuffman(data):
    """Decodes a Huffman-coded string (section 5.2)."""
    out, code, length = bytearray(), 0, 0
    for byte in data:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            symbol = CODES.get((length, code))
            if symbol == 256 or length > 30:
                raise Undecodable("end of string")
            if symbol is not None:
                out.append(symbol)
                code, length = 0, 0
    if length > 7 or code != (1 << length) - 1:
        raise Undecodable("padding")
    return bytes(out)


class Decoder:
    """Decoder with the dynamic table of one direction of a connection."""

    def __init__(self, limit=DEFAULT_TABLE):
        self.dynamic, self.size, self.limit = [], limit, limit

    def decode(self, block):
        """Returns the fields of a block."""
        at, fields = 0, []
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = self.integer(block, at, 7)
                fields.append(self.entry(index))
            elif first & 0xE0 == 0x20:
                size, at = self.integer(block, at, 5)
                if fields or size > self.limit:
                    raise Undecodable("table size")
                self.size = size
                self.evict()
            else:
                index, at = self.integer(block, at, 6 if first & 0x40 else 4)
                name = self.entry(index)[0] if index else None
                if name is None:
                    name, at = self.string(block, at)
                value, at = self.string(block, at)
                fields.append((name, value))
                if first & 0x40:
                    self.dynamic.insert(0, (name, value))
                    self.evict()
        return fields

    def entry(self, index):
        """Returns an entry of the static or dynamic table."""
        if not 0 < index <= len(STATIC) + len(self.dynamic):
            raise Undecodable("index")
        return STATIC[index - 1] if index <= len(STATIC) else self.dynamic[index - len(STATIC) - 1]

    def evict(self):
        """Evicts entries until the dynamic table is within its size (section 4.1)."""
        while sum(len(name) + len(value) + 32 for name, value in self.dynamic) > self.size:
            self.dynamic.pop()

    @staticmethod
    def integer(block, at, bits):
        """Decodes an integer with a prefix (section 5.1). Returns it and the position after it."""
        most = (1 << bits) - 1
        value, at, shift = block[at] & most, at + 1, 0
        if value < most:
            return value, at
        while True:
            if at >= len(block) or shift > 28:
                raise Undecodable("integer")
            value += (block[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not block[at - 1] & 0x80:
                return value, at

    def string(self, block, at):
        """Decodes a string. Returns it and the position after it."""
        if at >= len(block):
            raise Undecodable("string")
        coded = block[at] & 0x80
        length, at = self.integer(block, at, 7)
        data = block[at : at + length]
        if len(data) < length:
            raise Undecodable("string")
        return unhuffman(data) if coded else data, at + length


def integer(value, bits, flags=0):
    """Encodes an integer with a prefix."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([flags | value])
    out, value = [flags | most], value - most
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def literal(name, value, flags=0x00):
    """Encodes a literal field with its name: without indexing, with incremental indexing for `flags` 0x40, or never
    indexed for 0x10.
    """
    return bytes([flags]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def indexed(index):
    """Encodes a reference to an entry of the tables."""
    return integer(index, 7, 0x80)
