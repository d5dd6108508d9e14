package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
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

// present is the tree.Provide for content that must be there already.
func (s *Images) present(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := s.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("blob %s is missing: %w", desc.Digest, errs.Invalid)
	}
	if err == nil && info.Size != desc.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errs.Invalid)
	}
	return err
}

// trees reads images from the store's content.
func (s *Images) trees() tree.Reader { return tree.Reader{Content: s.content, Platform: s.platform} }
