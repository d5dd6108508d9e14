package criuimage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/magic"
	"google.golang.org/protobuf/proto"

	"github.com/berthrun/berth/internal/errs"
)

// An image file begins with two magic numbers: one for all image files, and one for its kind. The inventory has the
// second one only. Then come messages, each after its length in 4 bytes. After some messages come other bytes.
const (
	headerSize    = 8
	inventoryKind = "INVENTORY"
	lengthSize    = 4
	// maxImage bounds an image file that is decoded. Memory is in files that are not.
	maxImage = 64 << 20
	// maxMessages bounds the messages of a file.
	maxMessages = 1 << 20
)

// image is a file of CRIU that is decoded.
type image struct {
	// name is that of the file, in errors the entry of the archive.
	name string
	rest []byte
	read int
}

// bad is the error of a file that is no image of CRIU, or exceeds the request.
func bad(name, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", name, fmt.Sprintf(format, args...), errs.Invalid)
}

// unsupported is the error of what is not restored.
func unsupported(name, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", name, fmt.Sprintf(format, args...), errs.Unsupported)
}

// numberOf returns the magic number of a kind of image.
func numberOf(kind string) uint32 { return uint32(magic.LoadMagic().ByName[kind]) } //nolint:gosec // it has 32 bits

// newImage returns the messages of a file of a kind.
func newImage(name, kind string, data []byte) (*image, error) {
	begin := newWritten(kind).data
	if !bytes.HasPrefix(data, begin) {
		return nil, bad(name, "it is not an image of the kind %s", kind)
	}
	return &image{name: name, rest: data[len(begin):]}, nil
}

// more reports whether there is another message.
func (i *image) more() bool { return len(i.rest) > 0 }

// next decodes the next message. What is in it and not in this version of the messages is left out.
func (i *image) next(m proto.Message) error {
	if i.read++; i.read > maxMessages {
		return bad(i.name, "it has more than %d messages", maxMessages)
	}
	if len(i.rest) < lengthSize {
		return bad(i.name, "it ends in a message")
	}
	size := binary.LittleEndian.Uint32(i.rest)
	data, err := i.take(lengthSize, int64(size))
	if err != nil {
		return err
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
		return bad(i.name, "message %d: %v", i.read, err)
	}
	return nil
}

// take returns size bytes, after skip bytes.
func (i *image) take(skip int, size int64) ([]byte, error) {
	if size > int64(len(i.rest)-skip) {
		return nil, bad(i.name, "it ends in a message")
	}
	data := i.rest[skip : skip+int(size)]
	i.rest = i.rest[skip+int(size):]
	return data, nil
}

// written is an image file that is encoded.
type written struct{ data []byte }

func newWritten(kind string) *written {
	w := &written{}
	if kind != inventoryKind {
		w.data = binary.LittleEndian.AppendUint32(nil, numberOf("IMG_COMMON"))
	}
	w.data = binary.LittleEndian.AppendUint32(w.data, numberOf(kind))
	return w
}

// add encodes a message, and adds extra bytes after it.
func (w *written) add(m proto.Message, extra ...byte) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err
	}
	w.data = binary.LittleEndian.AppendUint32(w.data, uint32(len(data))) //nolint:gosec // shorter than maxImage
	w.data = append(append(w.data, data...), extra...)
	return nil
}

// save writes a file that does not exist yet.
func save(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errs.OfDisk(err)
	}
	if _, err = f.Write(data); err != nil {
		f.Close()
		return errs.OfDisk(err)
	}
	return errs.OfDisk(f.Close())
}

// saveOne writes an image file of one message.
func saveOne(path, kind string, m proto.Message) error {
	w := newWritten(kind)
	if err := w.add(m); err != nil {
		return err
	}
	return save(path, w.data)
}
