package images

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/moby/moby/api/types/jsonstream"

	"github.com/berthrun/berth/internal/errs"
)

// maxMessage bounds one message of an engine's stream, in bytes.
const maxMessage = 1 << 20

// readMessages calls each with the messages of a pull or a load, until the engine ends the
// stream. It returns an error that the engine reports, with its kind.
func readMessages(stream io.Reader, each func(jsonstream.Message)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var message jsonstream.Message
		if err := json.Unmarshal(line, &message); err != nil {
			return fmt.Errorf("the engine's answer is no JSON: %w", err)
		}
		if message.Error != nil {
			return withKind(message.Error, message.Error.Code)
		}
		each(message)
	}
	err := lines.Err()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the engine closed the connection before it was done: %w: %w", err, errs.Unavailable)
	}
	if err != nil {
		return fmt.Errorf("cannot read the engine's answer: %w", err)
	}
	return nil
}
