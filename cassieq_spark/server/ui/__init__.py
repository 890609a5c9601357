"""The page `/ui`, for people who would rather look than read: rendered here, without a script.

`door` lets a visitor in, and writes the answer; `session` has the cookies, and tells a form of ours
from one of somebody else. `queues` and `messages` ask the client, `bodies` lays out what it says,
and `page` makes HTML by the templates.
"""
