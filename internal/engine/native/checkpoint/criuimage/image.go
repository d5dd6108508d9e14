package criuimage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/magic"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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
	// maxMessage and maxParts bound one message: two bytes can be a part that takes 200 bytes in the memory of this process.
	maxMessage = 32 << 20
	maxParts   = 1 << 19
	// maxKeptParts and maxKeptBytes bound the messages that are in memory at a time: a process has some 100 parts.
	maxKeptParts = 1 << 20
	maxKeptBytes = 64 << 20
	// packed is how many bytes of packed numbers count as a part.
	packed = 32
)

// size is how large messages are.
type size struct{ parts, bytes int }

// image is a file of CRIU that is decoded.
type image struct {
	// name is that of the file, in errors the entry of the archive.
	name string
	rest []byte
	read int
	ctx  context.Context //nolint:containedctx // the life of one Fit
	// left is how much more may be decoded, nil for messages that are not kept.
	left *size
}

// bad is the error of a file that CRIU has not written, or that exceeds the request.
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
	return &image{name: name, rest: data[len(begin):], ctx: context.Background()}, nil
}

// more reports whether there is another message.
func (i *image) more() bool { return len(i.rest) > 0 }

// next decodes the next message. What is in it and not in this version of the messages is left out.
func (i *image) next(m proto.Message) error {
	if i.read++; i.read > maxMessages {
		return bad(i.name, "it has more than %d messages", maxMessages)
	}
	if i.ctx.Err() != nil {
		return context.Cause(i.ctx)
	}
	if len(i.rest) < lengthSize {
		return bad(i.name, "it ends in a message")
	}
	data, err := i.take(lengthSize, int64(binary.LittleEndian.Uint32(i.rest)))
	if err != nil {
		return err
	}
	if err := i.weigh(data, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
		return bad(i.name, "message %d: %v", i.read, err)
	}
	return nil
}

// weigh refuses a message that would take too much memory.
func (i *image) weigh(data []byte, kind protoreflect.MessageDescriptor) error {
	parts := partsOf(data, kind, maxDepth)
	if len(data) > maxMessage || parts > maxParts {
		return bad(i.name, "message %d has %d bytes in %d parts, more than %d in %d", i.read, len(data), parts, maxMessage, maxParts)
	}
	if i.left == nil {
		return nil
	}
	i.left.parts -= parts
	i.left.bytes -= len(data)
	if i.left.parts < 0 || i.left.bytes < 0 {
		return bad(i.name, "the images of all processes have more than %d bytes in %d parts", maxKeptBytes, maxKeptParts)
	}
	return nil
}

// maxDepth is how deep messages of CRIU are in one another, at least.
const maxDepth = 8

// partsOf counts what a message of a kind has in it: other messages, and texts. What is damaged counts until there: it is
// not decoded.
func partsOf(data []byte, kind protoreflect.MessageDescriptor, depth int) (parts int) {
	for len(data) > 0 && parts <= maxParts {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return parts
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return parts
		}
		field := kind.Fields().ByNumber(number)
		if wire == protowire.BytesType && field != nil {
			value, _ := protowire.ConsumeBytes(data)
			switch inner := field.Message(); {
			case inner == nil:
				parts += 1 + len(value)/packed
			case depth > 0:
				parts += 1 + partsOf(value, inner, depth-1)
			default:
				parts += 1 + len(value)
			}
		}
		data = data[n:]
	}
	return parts
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
