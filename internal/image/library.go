package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/sirupsen/logrus"

	"github.com/berthrun/berth/internal/errs"
)

// ns prepares a context for containerd's libraries.
func (s *Images) ns(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// forwardLibraryLog takes what containerd's libraries log away from standard error.
// They have one logger per process: the last store that is opened gets it.
func forwardLibraryLog(to *slog.Logger) {
	logger := logrus.StandardLogger()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.WarnLevel)
	hooks := logrus.LevelHooks{}
	hooks.Add(forward{to})
	logger.ReplaceHooks(hooks)
}

type forward struct{ log *slog.Logger }

// Levels implements logrus.Hook.
func (f forward) Levels() []logrus.Level {
	return []logrus.Level{logrus.WarnLevel, logrus.ErrorLevel}
}

// Fire hands on the message and the error; other fields may be anything that a
// request carried. What matters comes back as an error too: so warnings are for
// debugging, and errors are warnings.
func (f forward) Fire(entry *logrus.Entry) error {
	level := slog.LevelDebug
	if entry.Level == logrus.ErrorLevel {
		level = slog.LevelWarn
	}
	args := []any{}
	if err, ok := entry.Data[logrus.ErrorKey]; ok {
		args = append(args, "error", err)
	}
	f.log.Log(context.Background(), level, entry.Message, args...)
	return nil
}

// diskError gives an error of a full disk its kind.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", err, errs.Exhausted)
	}
	return err
}
