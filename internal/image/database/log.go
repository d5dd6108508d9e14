package database

import (
	"context"
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// ForwardLibraryLog sends the log of containerd's libraries to a logger, not to standard error.
// They have one logger per process: the last store that is opened gets it.
func ForwardLibraryLog(to *slog.Logger) {
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
