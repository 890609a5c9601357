"""The page `/ui`, for people who would rather look than read: rendered here, without a script.

`pages` is the one list of what there is. `door` lets a visitor in, and writes the answer; `session`
has the cookies, and tells a form of ours from one of somebody else. `login`, `queues`, `messages`
and `letters` ask the client, `picture` and `bodies` lay out what it says, and `render` makes HTML.
"""
