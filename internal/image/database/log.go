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

// Fire passes on the message and the error; other fields may have any data of a
// request. The libraries also return important errors, so warnings are logged at
// debug level, and errors as warnings.
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
