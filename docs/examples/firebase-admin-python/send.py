"""Sends to the emulator with the official Python SDK, unchanged: the proxy leads it there. See README.md beside this."""

import os

import firebase_admin
from firebase_admin import credentials, exceptions, messaging

firebase_admin.initialize_app(credentials.Certificate(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]))


def message(token):
    return messaging.Message(
        token=token,
        notification=messaging.Notification(title="GOAL 67'", body="Arsenal 2-1 Chelsea"),
        android=messaging.AndroidConfig(collapse_key="match-4711", priority="high", ttl=120),
    )


def said(error):
    answer = error.http_response
    return (answer.status_code, answer.headers.get("Retry-After")) if answer is not None else None


for token in ["phone-1", "dead-1", "foreign-1", "suspect-1", "quota-1", "html404-1", "flaky503-1"]:
    try:
        print(f"{token:12} ok      {messaging.send(message(token))}")
    except exceptions.FirebaseError as error:
        print(f"{token:12} {type(error).__name__:22} {error.code:18} {said(error)}")

batch = messaging.send_each([message(f"phone-{n}") for n in range(100)] + [message("dead-2")])
print(f"send_each    {batch.success_count} ok, {batch.failure_count} failed")
