package clustercmd

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestConfirm(t *testing.T) {
	for answer, agreed := range map[string]bool{"y\n": true, " YES \n": true, "n\n": false, "\n": false, "": false, "yeah\n": false} {
		err := confirm(t.Context(), strings.NewReader(answer), io.Discard)
		if (err == nil) != agreed || err != nil && !errors.Is(err, errs.State) {
			t.Errorf("%q: %v", answer, err)
		}
	}
	// Ctrl-C counts as an answer.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt"))
	silent, _ := io.Pipe()
	defer silent.Close()
	if err := confirm(ctx, silent, io.Discard); err == nil || !strings.Contains(err.Error(), "nothing was done: interrupt") {
		t.Errorf("%v", err)
	}
}
