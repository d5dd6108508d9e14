package taskapi

import (
	"encoding/binary"
	"errors"
	"time"
)

// Message is a message of protocol buffers, encoded. Fields with the zero value are left out, as
// proto3 has it.
type Message []byte

// The types of fields on the wire.
const (
	typeVarint = 0
	type64     = 1
	typeBytes  = 2
	type32     = 5
)

// Text adds a field of type string, bytes or message.
func (m Message) Text(field int, value string) Message {
	if value == "" {
		return m
	}
	return append(m.header(field, typeBytes, uint64(len(value))), value...)
}

// Embed adds a field that is a message, also an empty one.
func (m Message) Embed(field int, value Message) Message {
	return append(m.header(field, typeBytes, uint64(len(value))), value...)
}

// Number adds a field of a type of integers.
func (m Message) Number(field int, value uint64) Message {
	if value == 0 {
		return m
	}
	return m.header(field, typeVarint, value)
}

// Flag adds a field of type bool.
func (m Message) Flag(field int, value bool) Message {
	if !value {
		return m
	}
	return m.Number(field, 1)
}

func (m Message) header(field, kind int, value uint64) Message {
	m = binary.AppendUvarint(m, uint64(field)<<3|uint64(kind)) //nolint:gosec // small constants
	return binary.AppendUvarint(m, value)
}

// errMessage is the error of bytes that are not a message.
var errMessage = errors.New("it is not a message of protocol buffers")

// Field is a field of a message: Number has an integer, Bytes everything else.
type Field struct {
	ID     int
	Number uint64
	Bytes  []byte
}

// Text is the field's value as a string.
func (f Field) Text() string { return string(f.Bytes) }

// Fields calls each with every field of a message. A field may be there more than once: the last one
// counts.
func (m Message) Fields(each func(f Field) error) error {
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29 {
			return errMessage
		}
		m = m[n:]
		f := Field{ID: int(tag >> 3)} //nolint:gosec // checked above
		size := 0
		switch tag & 7 {
		case typeVarint:
			if f.Number, n = binary.Uvarint(m); n <= 0 {
				return errMessage
			}
			m = m[n:]
		case typeBytes:
			length, n := binary.Uvarint(m)
			if n <= 0 || length > uint64(len(m)-n) {
				return errMessage
			}
			m, size = m[n:], int(length) //nolint:gosec // checked above
		case type32:
			size = 4
		case type64:
			size = 8
		default:
			return errMessage
		}
		if size > len(m) {
			return errMessage
		}
		f.Bytes, m = m[:size:size], m[size:]
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

// moment decodes a google.protobuf.Timestamp. The zero value stands for one that is missing or out of range.
func moment(m Message) time.Time {
	var seconds, nanos uint64
	err := m.Fields(func(f Field) error {
		switch f.ID {
		case 1:
			seconds = f.Number
		case 2:
			nanos = f.Number
		}
		return nil
	})
	const maxSeconds = 253402300799 // the end of the year 9999
	if err != nil || seconds == 0 || seconds > maxSeconds || nanos >= uint64(time.Second) {
		return time.Time{}
	}
	return time.Unix(int64(seconds), int64(nanos)).UTC()
}

// Any encodes a google.protobuf.Any.
func Any(typeURL string, value []byte) Message {
	return Message{}.Text(1, typeURL).Text(2, string(value))
}
