"""A Flask application with jobs, ported from APScheduler 3's BackgroundScheduler."""
