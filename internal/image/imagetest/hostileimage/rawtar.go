// Package hostileimage has what tests of hostile images share: archives that no tool writes, what nothing may touch, and the page
// with the outcomes.
package hostileimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
)

// RawTar is a tar stream of headers that archive/tar does not write, and of bodies that are shorter than their headers say.
type RawTar struct{ bytes.Buffer }

// RawEntry is one header.
type RawEntry struct {
	Name, Link       string // at most 100 bytes
	Type             byte
	Size, Mode       int64
	UID, GID         int64
	Major, Minor     int64
	GNU, Unsummed    bool // Unsummed has a wrong checksum
	Body             []byte
	PAX              []string // "key=value" records, which come before the entry
	LongName, Global string   // a GNU long name, and one record of a global PAX header, before the entry
}

// Add appends entries.
func (r *RawTar) Add(entries ...RawEntry) *RawTar {
	for _, e := range entries {
		if e.Global != "" {
			r.special(tar.TypeXGlobalHeader, []byte(paxRecord(e.Global)))
		}
		if e.LongName != "" {
			r.special(tar.TypeGNULongName, append([]byte(e.LongName), 0))
		}
		if len(e.PAX) > 0 {
			var text strings.Builder
			for _, record := range e.PAX {
				text.WriteString(paxRecord(record))
			}
			r.special(tar.TypeXHeader, []byte(text.String()))
		}
		if e.Size == 0 {
			e.Size = int64(len(e.Body))
		}
		r.block(e)
		r.padded(e.Body)
	}
	return r
}

// End appends the end of the archive, and returns all of it.
func (r *RawTar) End() []byte {
	r.Write(make([]byte, 1024))
	return r.Bytes()
}

func (r *RawTar) special(kind byte, body []byte) {
	r.block(RawEntry{Name: "special", Type: kind, Size: int64(len(body)), GNU: kind == tar.TypeGNULongName})
	r.padded(body)
}

func (r *RawTar) padded(body []byte) {
	r.Write(body)
	r.Write(make([]byte, (512-len(body)%512)%512))
}

// paxRecord has its own length before the text, which counts.
func paxRecord(text string) string {
	n := len(text) + 2
	for size := 0; size != n; {
		size = n
		n = len(text) + 2 + len(fmt.Sprint(size))
	}
	return fmt.Sprintf("%d %s\n", n, text)
}

func (r *RawTar) block(e RawEntry) {
	b := make([]byte, 512)
	copy(b[:100], e.Name)
	number(b[100:108], e.Mode)
	number(b[108:116], e.UID)
	number(b[116:124], e.GID)
	number(b[124:136], e.Size)
	number(b[136:148], 0)
	b[156] = e.Type
	copy(b[157:257], e.Link)
	copy(b[257:], "ustar\x0000")
	if e.GNU {
		copy(b[257:], "ustar  \x00")
	}
	number(b[329:337], e.Major)
	number(b[337:345], e.Minor)
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	if e.Unsummed {
		sum++
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	r.Write(b)
}

// number writes octal digits, or the binary form of GNU tar where they do not suffice.
func number(field []byte, n int64) {
	if n >= 0 && n < 1<<(3*(len(field)-1)) {
		copy(field, fmt.Sprintf("%0*o", len(field)-1, n))
		return
	}
	for i := len(field) - 1; i >= 0; i-- {
		field[i] = byte(n)
		n >>= 8
	}
	field[0] |= 0x80
}
