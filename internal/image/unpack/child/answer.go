package child

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/berthrun/berth/internal/errs"
)

// The bounds of an answer. A layer may have taken over the child, so the daemon does not rely on what the child keeps to.
const (
	// MaxAnswer is the size of an answer in bytes.
	MaxAnswer = 4 << 20
	// maxOpaque is the length of Result.Opaque.
	maxOpaque = 1 << 16
	// maxUnsure is the length of Result.Unsure.
	maxUnsure = 1 << 12
)

// Answer is what the child writes to its standard output.
type Answer struct {
	Result
	Error string `json:"error,omitempty"`
	// Kind is an index into errs.Kinds, -1 for none.
	Kind int `json:"kind"`
}

// Names are paths relative to Upper. Empty ones of few bytes each would take many times the memory of an answer, so it takes
// maxOpaque of them at most to read one. They are base64 in JSON: a name on disk need not be UTF-8.
type Names []string

// MarshalJSON implements json.Marshaler.
func (n Names) MarshalJSON() ([]byte, error) {
	raw := make([][]byte, len(n))
	for i, name := range n {
		raw[i] = []byte(name)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Names) UnmarshalJSON(data []byte) error {
	if *n != nil {
		return errors.New("an answer has the same list twice")
	}
	*n = Names{}
	decoder := json.NewDecoder(bytes.NewReader(data))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return errors.Join(errors.New("a list of names is not an array"), err)
	}
	for decoder.More() {
		if len(*n) == maxOpaque {
			return fmt.Errorf("a list has more than %d names", maxOpaque)
		}
		var name []byte
		if err := decoder.Decode(&name); err != nil {
			return err
		}
		*n = append(*n, string(name))
	}
	return nil
}

// write writes the answer for a result or an error.
func write(w io.Writer, result Result, err error) error {
	answer := Answer{Result: result, Kind: -1}
	if err != nil {
		answer.Error, answer.Kind = shortened(err.Error()), slices.Index(errs.Kinds(), errs.Kind(err))
	}
	data, marshalErr := json.Marshal(answer)
	if marshalErr != nil {
		return marshalErr
	}
	if len(data) > MaxAnswer {
		return write(w, Result{}, fmt.Errorf("the names of the layer's deletions have more than %d bytes together: %w", MaxAnswer, errs.Invalid))
	}
	_, err = w.Write(data)
	return err
}

// ReadAnswer reads the answer of a child that may be hostile.
func ReadAnswer(data []byte) (Answer, error) {
	if len(data) > MaxAnswer {
		return Answer{}, fmt.Errorf("the answer of the unpack helper has more than %d bytes", MaxAnswer)
	}
	var answer Answer
	if err := json.Unmarshal(data, &answer); err != nil {
		return Answer{}, fmt.Errorf("cannot read the answer of the unpack helper: %w", err)
	}
	if len(answer.Unsure) > maxUnsure {
		return Answer{}, fmt.Errorf("the answer of the unpack helper has %d unsure deletions, more than %d", len(answer.Unsure), maxUnsure)
	}
	if used := answer.Usage; used != nil && (used.Bytes < 0 || used.Inodes < 1) {
		return Answer{}, fmt.Errorf("the answer of the unpack helper has %d bytes and %d inodes as what the layer takes", used.Bytes, used.Inodes)
	}
	answer.Error = shortened(answer.Error)
	return answer, nil
}
