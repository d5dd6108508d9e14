package store

import (
	"sync"
	"weak"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Message lets a protobuf message be a field of a record. It is written in the
// message's own JSON form, which loses nothing that the message's type knows; see wire.go for
// what is written beside it.
// The message does not change: a record that changes is written again and again,
// and its message is encoded once.
type Message[M proto.Message] struct {
	message M
	// encoded is shared by the copies of a record that hold this message; nil
	// when the message came from disk.
	encoded *encoding
}

// encoding is the JSON of a message until the next collection of garbage: a record changes several
// times while its object is made, and hardly any more after that.
type encoding struct {
	mu   sync.Mutex
	json weak.Pointer[[]byte]
}

func (e *encoding) load() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if data := e.json.Value(); data != nil {
		return *data
	}
	return nil
}

func (e *encoding) store(data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.json = weak.Make(&data)
}

// MessageOf wraps a message, which must not change any more.
func MessageOf[M proto.Message](m M) Message[M] {
	return Message[M]{m, new(encoding)}
}

// Get returns the message. The caller must not change it.
func (m Message[M]) Get() M { return m.message }

// MarshalJSON writes null for no message.
func (m Message[M]) MarshalJSON() ([]byte, error) {
	if !m.present() {
		return []byte("null"), nil
	}
	if m.encoded != nil {
		if data := m.encoded.load(); data != nil {
			return data, nil
		}
	}
	data, err := protojson.MarshalOptions{}.Marshal(m.message)
	if err == nil {
		data, err = withWire(data, m.message)
	}
	if err == nil && m.encoded != nil {
		m.encoded.store(data)
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
	if !fromWire(data, fresh) {
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, fresh); err != nil {
			return err
		}
	}
	m.message, m.encoded = fresh, nil
	return nil
}

func (m Message[M]) present() bool {
	var none proto.Message = m.message
	return none != nil && none.ProtoReflect().IsValid()
}
