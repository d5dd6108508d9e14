package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
)

// LogTo sends what NRI's library logs to a log, for debugging: what matters to operators is logged by
// the Host. It holds for the process; call it before New.
func LogTo(log *slog.Logger) { nrilog.Set(libraryLog{log}) }

// starting is the table of the Host whose Start is under way. Only the library's log says why a plugin could not be started:
// its warnings of one have the plugin's name and the error, and Start logs them with the whole name.
var starting atomic.Pointer[table] //nolint:gochecknoglobals // the library has one log for the process

// libraryLog implements the library's Logger.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Debugf(ctx context.Context, format string, args ...any) {
	l.debug(ctx, format, args)
}

func (l libraryLog) Infof(ctx context.Context, format string, args ...any) {
	l.debug(ctx, format, args)
}

func (l libraryLog) Warnf(ctx context.Context, format string, args ...any) {
	if len(args) == 2 {
		name, named := args[0].(string)
		err, failed := args[1].(error)
		if t := starting.Load(); t != nil && named && failed {
			t.unstartedPlugin(name, err)
			return
		}
	}
	l.log.WarnContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
}

func (l libraryLog) Errorf(ctx context.Context, format string, args ...any) {
	if slices.ContainsFunc(args, isWithoutWasm) {
		return
	}
	l.log.ErrorContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
}

func (l libraryLog) debug(ctx context.Context, format string, args []any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
	}
}

// isWithoutWasm reports whether an argument of a line is the error of a library that was built without
// WebAssembly plugins, as berth's is. The library logs it at each start and goes on.
func isWithoutWasm(arg any) bool {
	err, isError := arg.(error)
	return isError && errors.Is(err, adaptation.ErrWasmDisabled)
}
