package output

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// shortID is how much of an id a table shows.
const shortID = 13

// Short shortens an ID unless it should be shown in full.
func Short(id string, full bool) string {
	if full {
		return id
	}
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), shortID)]
}

// Ago formats the distance of a time, in the words of docker and crictl.
func Ago(unixNano int64, now time.Time) string {
	return distance(now.Sub(time.Unix(0, unixNano))) + " ago"
}

func distance(d time.Duration) string {
	const day, week, month, year = 24, 7 * 24, 30 * 24, 365 * 24
	seconds, minutes, hours := int(d.Seconds()), int(d.Minutes()), int(math.Round(d.Hours()))
	switch {
	case seconds < 1:
		return "Less than a second"
	case seconds == 1:
		return "1 second"
	case seconds < 60:
		return fmt.Sprintf("%d seconds", seconds)
	case minutes == 1:
		return "About a minute"
	case minutes < 60:
		return fmt.Sprintf("%d minutes", minutes)
	case hours == 1:
		return "About an hour"
	case hours < 2*day:
		return fmt.Sprintf("%d hours", hours)
	case hours < 2*week:
		return fmt.Sprintf("%d days", hours/day)
	case hours < 2*month:
		return fmt.Sprintf("%d weeks", hours/week)
	case hours < 2*year:
		return fmt.Sprintf("%d months", hours/month)
	}
	return fmt.Sprintf("%d years", int(d.Hours())/year)
}

// Size is a number of bytes in the largest decimal unit, with so many digits.
func Size(bytes uint64, digits int) string {
	value, units := float64(bytes), []string{"B", "kB", "MB", "GB", "TB", "PB"}
	for value >= 1000 && len(units) > 1 {
		value, units = value/1000, units[1:]
	}
	return strconv.FormatFloat(value, 'g', digits, 64) + units[0]
}

// State is the suffix of CRI's constant, capitalized: Running, NotReady.
func State(word fmt.Stringer) string {
	text := word.String()
	text = text[strings.Index(text, "_")+1:]
	if text == "NOTREADY" {
		return "NotReady"
	}
	return text[:1] + strings.ToLower(text[1:])
}

// IsDigest reports whether an image's name is an id.
func IsDigest(name string) bool { return strings.HasPrefix(name, "sha256:") }
