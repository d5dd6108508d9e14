// Package daemonlog makes the log of the daemon.
package daemonlog

import (
	"log/slog"
	"os"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
	"golang.org/x/term"
)

// Logger is the daemon's log with the level that a reload changes.
type Logger struct {
	*slog.Logger
	level *slog.LevelVar
}

// New logs to standard error: as text or as JSON, as the configuration says.
func New(cfg config.Log) *Logger {
	l := &Logger{level: new(slog.LevelVar)}
	l.SetLevel(cfg.Level)
	options := &slog.HandlerOptions{Level: l.level, ReplaceAttr: errs.LogAttr}
	text := cfg.Format == "text" || cfg.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd()))
	if text {
		l.Logger = slog.New(slog.NewTextHandler(os.Stderr, options))
	} else {
		l.Logger = slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return l
}

// SetLevel takes a level that config has accepted.
func (l *Logger) SetLevel(name string) {
	l.level.Set(map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[name])
}
