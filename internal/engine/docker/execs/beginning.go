package execs

import (
	"bytes"
	"io"
)

// beginning keeps the first bytes of what is written to it, and passes all on.
//
// It has no method but Write: io.Copy would write past it with those of a bytes.Buffer.
type beginning struct {
	kept bytes.Buffer
	to   io.Writer
}

// maxBeginning is how many bytes of an output are kept.
const maxBeginning = 1 << 10

func (b *beginning) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), max(0, maxBeginning-b.kept.Len()))])
	if b.to == nil {
		return len(p), nil
	}
	return b.to.Write(p)
}
