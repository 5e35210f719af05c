package api

import (
	"google.golang.org/grpc/codes"

	"github.com/rhumbdb/rhumb"
)

// codeOf is the one table from kinds to gRPC codes. Several kinds share a code; the Error in the status's details tells
// them apart.
var codeOf = [...]codes.Code{
	rhumb.Other:            codes.Unknown,
	rhumb.InvalidArgument:  codes.InvalidArgument,
	rhumb.NotFound:         codes.NotFound,
	rhumb.AlreadyExists:    codes.AlreadyExists,
	rhumb.ConditionFailed:  codes.FailedPrecondition,
	rhumb.NotPrimary:       codes.Aborted,
	rhumb.Unavailable:      codes.Unavailable,
	rhumb.Overloaded:       codes.ResourceExhausted,
	rhumb.Unknown:          codes.Unknown,
	rhumb.Corrupt:          codes.DataLoss,
	rhumb.Unauthenticated:  codes.Unauthenticated,
	rhumb.PermissionDenied: codes.PermissionDenied,
	rhumb.DeadlineExceeded: codes.DeadlineExceeded,
	rhumb.Canceled:         codes.Canceled,
	rhumb.TooLarge:         codes.OutOfRange,
	rhumb.DiskFull:         codes.ResourceExhausted,
	rhumb.WrongCluster:     codes.FailedPrecondition,
	rhumb.Incompatible:     codes.Unimplemented,
	rhumb.Conflict:         codes.Aborted,
	rhumb.Expired:          codes.OutOfRange,
	rhumb.Internal:         codes.Internal,
}

// kindOf is the way back, for statuses without details: those come from gRPC itself or a proxy, not from a node, and
// say nothing about the effect of a write. So no code maps to a kind that promises "not applied" because of the state
// of a range: Unavailable maps to Unknown.
var kindOf = [...]rhumb.Kind{
	codes.OK:                 rhumb.Other,
	codes.Canceled:           rhumb.Unknown,
	codes.Unknown:            rhumb.Other,
	codes.InvalidArgument:    rhumb.InvalidArgument,
	codes.DeadlineExceeded:   rhumb.DeadlineExceeded,
	codes.NotFound:           rhumb.NotFound,
	codes.AlreadyExists:      rhumb.AlreadyExists,
	codes.PermissionDenied:   rhumb.PermissionDenied,
	codes.ResourceExhausted:  rhumb.TooLarge, // gRPC says so of a message above its bound, which is never delivered
	codes.FailedPrecondition: rhumb.Other,
	codes.Aborted:            rhumb.Other,
	codes.OutOfRange:         rhumb.Other,
	codes.Unimplemented:      rhumb.Incompatible,
	codes.Internal:           rhumb.Other,
	codes.Unavailable:        rhumb.Unknown,
	codes.DataLoss:           rhumb.Other,
	codes.Unauthenticated:    rhumb.Unauthenticated,
}

// Code gives the gRPC code of a kind.
func Code(k rhumb.Kind) codes.Code {
	if int(k) < len(codeOf) {
		return codeOf[k]
	}
	return codes.Unknown
}

// KindOfCode gives the kind of a status without an Error in its details.
func KindOfCode(c codes.Code) rhumb.Kind {
	if int(c) < len(kindOf) {
		return kindOf[c]
	}
	return rhumb.Other
}
