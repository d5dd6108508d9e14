package view

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Items are the elements of a list in the order in which clients get them, encoded. The answer of
// every list call of CRI has its elements in field 1; each item is one occurrence of that field. So
// Items are the body of such an answer, and of the parts of a streamed one. They do not change.
type Items struct {
	// wire has the items one after the other. ends[i] is where item i ends.
	wire []byte
	ends []int
}

// itemsField is the number of the field that has the elements of a list.
const itemsField protowire.Number = 1

// Len returns how many items there are.
func (i Items) Len() int { return len(i.ends) }

// Wire returns all items. The caller must not change them.
func (i Items) Wire() []byte { return i.wire }

// Parts returns all items in parts of at most limit bytes, in their order. A larger item is a part
// of its own. The caller must not change them.
func (i Items) Parts(limit int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for start, next := 0, 0; next < len(i.ends); {
			end := i.ends[next]
			for next++; next < len(i.ends) && i.ends[next]-start <= limit; next++ {
				end = i.ends[next]
			}
			if !yield(i.wire[start:end]) {
				return
			}
			start = end
		}
	}
}

// item returns the bytes of one item.
func (i Items) item(n int) []byte {
	if n == 0 {
		return i.wire[:i.ends[0]]
	}
	return i.wire[i.ends[n-1]:i.ends[n]]
}

// appendWire adds an item that is encoded already.
func (i *Items) appendWire(item []byte) {
	i.wire = append(i.wire, item...)
	i.ends = append(i.ends, len(i.wire))
}

// Append encodes an item and adds it. Only the owner of the items may call it, before others have
// them.
func (i *Items) Append(item proto.Message) error {
	i.wire = protowire.AppendTag(i.wire, itemsField, protowire.BytesType)
	i.wire = protowire.AppendVarint(i.wire, uint64(proto.Size(item))) //nolint:gosec // a size is not negative
	wire, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(i.wire, item)
	if err != nil {
		return err
	}
	i.wire = wire
	i.ends = append(i.ends, len(i.wire))
	return nil
}
