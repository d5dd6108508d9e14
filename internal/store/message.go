package store

import (
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Message lets a protobuf message be a field of a record. It is written in the
// message's own JSON form, which loses nothing that the message's type knows.
// The message does not change: a record that changes is written again and again,
// and its message is encoded once.
type Message[M proto.Message] struct {
	message M
	// encoded is shared by the copies of a record that hold this message; nil
	// when the message came from disk.
	encoded *atomic.Pointer[[]byte]
}

// MessageOf wraps a message, which must not change any more.
func MessageOf[M proto.Message](m M) Message[M] {
	return Message[M]{m, new(atomic.Pointer[[]byte])}
}

// Get returns the message. The caller must not change it.
func (m Message[M]) Get() M { return m.message }

// MarshalJSON writes null for no message.
func (m Message[M]) MarshalJSON() ([]byte, error) {
	if !m.present() {
		return []byte("null"), nil
	}
	if m.encoded != nil {
		if data := m.encoded.Load(); data != nil {
			return *data, nil
		}
	}
	data, err := protojson.MarshalOptions{}.Marshal(m.message)
	if err == nil && m.encoded != nil {
		m.encoded.Store(&data)
	}
	return data, err
}

// UnmarshalJSON ignores fields that this version does not know.
func (m *Message[M]) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var zero M
	fresh, ok := zero.ProtoReflect().New().Interface().(M)
	if !ok {
		return nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, fresh); err != nil {
		return err
	}
	m.message, m.encoded = fresh, nil
	return nil
}

func (m Message[M]) present() bool {
	var none proto.Message = m.message
	return none != nil && none.ProtoReflect().IsValid()
}
