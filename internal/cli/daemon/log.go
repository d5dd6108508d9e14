package daemon

import (
	"log/slog"
	"os"

	"github.com/berthrun/berth/internal/config"
	"golang.org/x/term"
)

// logger is the daemon's log with the level that a reload changes.
type logger struct {
	*slog.Logger
	level *slog.LevelVar
}

func newLogger(cfg config.Log) *logger {
	l := &logger{level: new(slog.LevelVar)}
	l.setLevel(cfg.Level)
	options := &slog.HandlerOptions{Level: l.level}
	text := cfg.Format == "text" || cfg.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd()))
	if text {
		l.Logger = slog.New(slog.NewTextHandler(os.Stderr, options))
	} else {
		l.Logger = slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return l
}

// setLevel takes a level that config has accepted.
func (l *logger) setLevel(name string) {
	l.level.Set(map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[name])
}
