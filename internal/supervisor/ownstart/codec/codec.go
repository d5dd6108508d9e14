// Package codec encodes values for a child of the supervisor. Both ends are the same program, so
// there are no versions, names or types in the bytes: decoding costs microseconds.
package codec

import (
	"encoding/binary"
	"errors"
)

// Writer appends values. The zero value is ready.
type Writer struct{ b []byte }

// Encoded returns what was written.
func (w *Writer) Encoded() []byte { return w.b }

// Uint writes an unsigned number.
func (w *Writer) Uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }

// Int writes a signed number.
func (w *Writer) Int(v int) { w.b = binary.AppendVarint(w.b, int64(v)) }

// Bool writes a truth value.
func (w *Writer) Bool(v bool) {
	if v {
		w.Uint(1)
	} else {
		w.Uint(0)
	}
}

// Bytes writes bytes with their length.
func (w *Writer) Bytes(v []byte) {
	w.Uint(uint64(len(v)))
	w.b = append(w.b, v...)
}

// String writes a string with its length.
func (w *Writer) String(v string) {
	w.Uint(uint64(len(v)))
	w.b = append(w.b, v...)
}

// Strings writes a list of strings.
func (w *Writer) Strings(v []string) {
	w.Uint(uint64(len(v)))
	for _, s := range v {
		w.String(s)
	}
}

// errEncoding means that the bytes are not what a Writer has written.
var errEncoding = errors.New("the encoding is damaged")

// Reader reads the values that a Writer has written, in the same order. After damaged bytes it
// returns zero values, and Err an error: one check after the last value is enough.
type Reader struct {
	b   []byte
	err error
}

// NewReader returns a Reader of b. The Reader does not keep strings that refer to b; Bytes does.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Err returns an error when the bytes were damaged, or when some are left over.
func (r *Reader) Err() error {
	if r.err == nil && len(r.b) > 0 {
		return errEncoding
	}
	return r.err
}

// Uint reads an unsigned number.
func (r *Reader) Uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Int reads a signed number.
func (r *Reader) Int() int {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// Bool reads a truth value.
func (r *Reader) Bool() bool { return r.Uint() != 0 }

// Bytes reads bytes, which are a part of the Reader's own.
func (r *Reader) Bytes() []byte {
	n := r.Len(1)
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// String reads a string.
func (r *Reader) String() string { return string(r.Bytes()) }

// Strings reads a list of strings, nil for an empty one.
func (r *Reader) Strings() []string {
	n := r.Len(1)
	if n == 0 {
		return nil
	}
	v := make([]string, n)
	for i := range v {
		v[i] = r.String()
	}
	return v
}

// Len reads the length of a list whose elements take at least size bytes each. It is 0 for a length
// that the bytes cannot hold, so that damaged bytes do not make a caller allocate.
func (r *Reader) Len(size int) int {
	n := r.Uint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

// fail makes every further value zero.
func (r *Reader) fail() { r.b, r.err = nil, errEncoding }
