package store

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"

	"google.golang.org/protobuf/proto"
)

// A start reads the records of a whole node, and most of its time would go by on messages in JSON. So the
// JSON form of a message begins with the same message in its binary form, which is read ten times faster:
//
//	{"@wire":"<length><checksum><base64>","metadata":{"name":"web"}}
//
// The length is that of the text after the binary form, and the checksum is of both, 8 hexadecimal digits
// each. A message whose text was changed by hand is read from its text. An older berth ignores the field.
//
// The reader of a record leaves out the texts that it does not need, before package json scans them.

// wireStart and wireEnd are around the binary form. A string of JSON has no such sequence, since it escapes
// its quotes. onlyStart begins a message of which nothing but the base64 is left: its checksum was right.
const (
	wireStart = `{"@wire":"`
	onlyStart = `{"@only":"`
	wireEnd   = '"'
	headSize  = 16
)

// withWire returns the JSON form of a message, with its binary form ahead. The text is as package json
// writes it: what that package changed would have another checksum.
func withWire(text []byte, message proto.Message) ([]byte, error) {
	var compact, plain bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, err
	}
	json.HTMLEscape(&plain, compact.Bytes())
	text = plain.Bytes()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil || len(text) < len("{}") {
		return text, nil //nolint:nilerr // the text is complete
	}
	rest := text[1:]
	if len(text) > len("{}") {
		rest = append([]byte{','}, rest...)
	}
	size := base64.StdEncoding.EncodedLen(len(wire))
	data := make([]byte, 0, len(wireStart)+headSize+size+1+len(rest))
	data = append(data, wireStart...)
	data = append(data, make([]byte, headSize)...)
	data = base64.StdEncoding.AppendEncode(data, wire)
	putHead(data[len(wireStart):], rest)
	data = append(data, wireEnd)
	return append(data, rest...), nil
}

// putHead fills in the head of a binary form.
func putHead(form, rest []byte) {
	var head [headSize / 2]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(rest))) //nolint:gosec // a record has no 4 GiB
	binary.BigEndian.PutUint32(head[4:], sumOf(form[headSize:], rest))
	hex.Encode(form, head[:])
}

// textOf returns the text that belongs to a binary form, of the data that follows it. ok is false when it
// does not fit.
func textOf(form, data []byte) (text []byte, ok bool) {
	var head [headSize / 2]byte
	if len(form) < headSize {
		return nil, false
	}
	if _, err := hex.Decode(head[:], form[:headSize]); err != nil {
		return nil, false
	}
	length := uint64(binary.BigEndian.Uint32(head[:]))
	if length > uint64(len(data)) {
		return nil, false
	}
	text = data[:length]
	return text, binary.BigEndian.Uint32(head[4:]) == sumOf(form[headSize:], text)
}

// sumOf is the checksum of a binary form and its text.
func sumOf(form, text []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(form, table), table, text)
}

// appendWithoutTexts appends to out a record in which nothing but the base64 is left of each message that
// has a binary form that fits its text.
func appendWithoutTexts(out, data []byte) []byte {
	for {
		at := bytes.Index(data, []byte(wireStart))
		if at < 0 {
			return append(out, data...)
		}
		form := data[at+len(wireStart):]
		end := bytes.IndexByte(form, wireEnd)
		if end < 0 {
			return append(out, data...)
		}
		text, ok := textOf(form[:end], form[end+1:])
		if !ok {
			out, data = append(out, data[:at+len(wireStart)]...), form
			continue
		}
		out = append(out, data[:at]...)
		out = append(out, onlyStart...)
		out = append(out, form[headSize:end]...)
		out = append(out, wireEnd, '}')
		data = form[end+1+len(text):]
	}
}

// fromWire reads a message from its binary form, and reports whether it has one that fits its text.
func fromWire(data []byte, message proto.Message) bool {
	form, only := bytes.CutPrefix(data, []byte(onlyStart))
	found := only
	if !only {
		form, found = bytes.CutPrefix(data, []byte(wireStart))
	}
	form, rest, closed := bytes.Cut(form, []byte{wireEnd})
	if !found || !closed {
		return false
	}
	if !only {
		if text, ok := textOf(form, rest); !ok || len(text) != len(rest) {
			return false
		}
		form = form[headSize:]
	}
	wire, err := base64.StdEncoding.AppendDecode(nil, form)
	if err == nil && (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wire, message) == nil {
		return true
	}
	proto.Reset(message)
	return false
}
